import type { Caller } from './call.ts'
import type { ApiCommand } from './commands.ts'
import { EXIT, Failure } from './failure.ts'
import { interruption } from './interrupt.ts'
import { printAnswer } from './render.ts'
import { isTerminal, type OutputSettings, printLine, visible, write } from './terminal.ts'

type ChatOptions = { isStreamed: boolean; areEventsPrinted: boolean; settings: OutputSettings }

/** Prints a chat completion: its text as it comes, or its record. */
export async function streamChat(
  caller: Caller,
  command: ApiCommand,
  args: Record<string, unknown>,
  { isStreamed, areEventsPrinted, settings }: ChatOptions,
): Promise<number> {
  if (!isStreamed && !areEventsPrinted) {
    const answer = await caller.call(command, args, { signal: interruption })
    await printAnswer(answer, caller.connection.body, settings)
    return EXIT.done
  }
  let last = '\n'
  for await (const event of await caller.stream(command, args, { signal: interruption })) {
    const { data } = event
    if (areEventsPrinted) await printLine(JSON.stringify(event))
    if (data?.error) throw new Failure(`the completion failed: ${data.error.message}`, EXIT.workFailed)
    const text = data?.choices?.[0]?.delta?.content
    if (areEventsPrinted || typeof text !== 'string' || text === '') continue
    await write(isTerminal() ? visible(text, 'lines') : text)
    last = text
  }
  if (!areEventsPrinted && !last.endsWith('\n')) await write('\n')
  return EXIT.done
}
