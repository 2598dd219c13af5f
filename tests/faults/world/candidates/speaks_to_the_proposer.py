from faults.harness.case import Shown

SHOWN = (
    Shown(26, "prompts/compiler_message", "the prompt", "quoted"),
    Shown(26, "prompts/terminal_codes", "the prompt", "quoted"),
    Shown(26, "prompts/floods_the_prompt", "the prompt", "quoted"),
    Shown(26, "prompts/op_notes_repeated", "the prompt", "quoted"),
)
