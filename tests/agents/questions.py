"""Questions for a model that is offered tools: 60 that need one of them, and 60 that need none.

They are our own. All questions of one set have the same tools, so that their prompts share a prefix.
"""

from typing import Any

Json = dict[str, Any]


def _tool(name: str, description: str, required: str, **properties: str) -> Json:
    """A tool. `required` has the names of arguments that must be given; the type of each is a word."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": required.split(),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


CODE = [
    _tool("read_file", "Read a file of the project.", "path", path="string", limit="integer"),
    _tool("write_file", "Write a text to a file of the project.", "path text", path="string", text="string"),
    _tool("run_command", "Run a shell command in the project and return its output.", "command", command="string"),
    _tool("search_files", "Find lines that match a pattern in the project's files.", "pattern", pattern="string"),
]
HOME = [
    _tool("set_timer", "Start a timer.", "minutes", minutes="integer", label="string"),
    _tool("set_light", "Turn the light of a room on or off.", "room on", room="string", on="boolean"),
    _tool("set_temperature", "Set the heating of a room.", "room celsius", room="string", celsius="number"),
    _tool("play_music", "Play music.", "query", query="string"),
]
OFFICE = [
    _tool("get_weather", "Get the current weather of a city.", "city", city="string"),
    _tool("send_email", "Send an e-mail.", "to subject body", to="string", subject="string", body="string"),
    _tool("create_event", "Put an event into the calendar.", "title date", title="string", date="string"),
    _tool("get_stock_price", "Get the current price of a share.", "symbol", symbol="string"),
]

WITH_NEED: list[tuple[list[Json], tuple[str, ...]]] = [
    (
        CODE,
        (
            "Show me the contents of README.md.",
            "Read the file src/main.py.",
            "What is in setup.cfg?",
            "Open guide.md and read it.",
            "Read the first 20 lines of notes.txt.",
            "Write 'hello' to the file greeting.txt.",
            "Create a file todo.txt with the text 'buy milk'.",
            "Save the text 'version = 2' in config.toml.",
            "Put 'print(1)' into test.py.",
            "Overwrite empty.txt with the word 'full'.",
            "Run the tests with pytest.",
            "Run git status.",
            "List the files of this directory with ls.",
            "Execute the command 'make build'.",
            "Check which version of Python is installed by running python --version.",
            "Find all lines with TODO in the project.",
            "Search the files for 'import os'.",
            "Where is the function parse_args used? Search for it.",
            "Find every occurrence of 'localhost' in the code.",
            "Look for the pattern 'def test_' in the files.",
        ),
    ),
    (
        HOME,
        (
            "Set a timer for 10 minutes.",
            "Remind me about the pasta in 8 minutes.",
            "Start a timer of 25 minutes called work.",
            "Wake me in 30 minutes.",
            "Count down 3 minutes for the tea.",
            "Turn on the light in the kitchen.",
            "Switch off the light in the bedroom.",
            "It is dark in the hall. Turn the light on.",
            "Lights off in the bathroom, please.",
            "Make the living room bright.",
            "Set the heating in the office to 21 degrees.",
            "Make the bedroom 18 degrees.",
            "The bathroom is cold, set it to 23 degrees.",
            "Lower the heating of the kitchen to 17.5 degrees.",
            "Set the temperature of the living room to 20.",
            "Play some jazz.",
            "Put on the Goldberg Variations.",
            "I want to hear music by Miles Davis.",
            "Play a lullaby.",
            "Start my workout playlist.",
        ),
    ),
    (
        OFFICE,
        (
            "What is the weather in Oslo now?",
            "Is it raining in Lisbon?",
            "How warm is it in Nairobi at the moment?",
            "Do I need an umbrella in Hamburg today?",
            "Tell me the current weather of Tokyo.",
            "Send an e-mail to ann@example.org with the subject Lunch and the text 'At noon?'.",
            "Mail bob@example.org that I am ill today; the subject is Absence.",
            "Write to team@example.org: subject Release, text 'Version 2 is out.'",
            "Send carla@example.org an e-mail with the subject Thanks and the body 'Thank you!'.",
            "E-mail dan@example.org, subject Invoice, body 'It is paid.'",
            "Put a dentist appointment into my calendar for 2026-03-04.",
            "Create an event 'Board meeting' on 2026-05-11.",
            "Add Mia's birthday to the calendar on 2026-07-19.",
            "Plan 'Holiday' for 2026-08-01 in my calendar.",
            "Schedule an event called Review on 2026-02-27.",
            "What is the current price of the share AAPL?",
            "How much is a share of MSFT now?",
            "Get the stock price of NVDA.",
            "Look up the price of TSLA.",
            "What does one share with the symbol IBM cost right now?",
        ),
    ),
]
"""The tools of each set, and its questions."""

WITHOUT_NEED: list[tuple[list[Json], tuple[str, ...]]] = [
    (
        CODE,
        (
            "What does the word 'recursion' mean?",
            "Explain what a hash table is in two sentences.",
            "Who invented Python?",
            "What is the difference between a list and a tuple in Python?",
            "Why is the sky blue?",
            "What is 7 times 8?",
            "Name three sorting algorithms.",
            "What does HTTP stand for?",
            "Explain big O notation in one sentence.",
            "Thank you, that was helpful!",
            "Is Rust a compiled language?",
            "Tell me a short joke about programmers.",
            "What is a unit test?",
            "Which is larger, a kilobyte or a megabyte?",
            "What does the acronym SQL stand for?",
            "Good morning!",
            "What is the boiling point of water in degrees Celsius?",
            "Translate 'good night' into French.",
            "What is a compiler?",
            "Name a famous computer scientist.",
        ),
    ),
    (
        HOME,
        (
            "What is the capital of France?",
            "Who wrote Romeo and Juliet?",
            "How many legs does a spider have?",
            "Tell me an interesting fact about whales.",
            "What is the opposite of 'early'?",
            "How many minutes has an hour?",
            "Thanks a lot!",
            "Why do leaves fall in autumn?",
            "What is the largest planet?",
            "Give me a short poem about the sea.",
            "In which year did the first human walk on the Moon?",
            "What is a synonym of 'happy'?",
            "How do bees make honey?",
            "What is the plural of 'mouse'?",
            "Which language is spoken in Brazil?",
            "Hello, how are you?",
            "What colour do blue and yellow make?",
            "How many continents are there?",
            "What is the square root of 81?",
            "Who painted the Mona Lisa?",
        ),
    ),
    (
        OFFICE,
        (
            "What is a noun?",
            "How many days has a leap year?",
            "What is the chemical symbol of gold?",
            "Who was Marie Curie?",
            "What is the meaning of 'ubiquitous'?",
            "Tell me a riddle.",
            "What is 15 percent of 200?",
            "Which ocean is the largest?",
            "What is a share, in one sentence?",
            "Why is it colder on mountains?",
            "Name the seasons of the year.",
            "You are great, thanks.",
            "What is the longest river of Africa?",
            "What do you call a baby cat?",
            "Spell the word 'necessary'.",
            "What does 'RSVP' mean?",
            "How many letters has the English alphabet?",
            "Which gas do plants take in?",
            "Goodbye!",
            "What is the past tense of 'go'?",
        ),
    ),
]
"""The same for questions that a model should answer itself."""
