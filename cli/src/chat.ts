import { Caller } from './call.ts'
import { loadCommands } from './commands.ts'
import { Connection } from './connection.ts'
import { EXIT, type Failure } from './failure.ts'
import { interruption } from './interrupt.ts'
import { idOf } from './named.ts'
import { addConnectionOptions, createParser, parseWith } from './parse.ts'
import { reportError } from './report.ts'
import { SessionPrinter } from './session-printer.ts'
import { canAsk, note, printLine } from './terminal.ts'

/** `muster chat <agent>`: a conversation on a session. Each line of stdin is a message. */
export async function chatCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster chat'), { output: false })
    .description('Talk to an agent. Each line is a message; /exit or Ctrl-D ends the conversation.')
    .argument('<agent>', 'ID or name of the agent')
    .option('--session <id>', 'continue this session')
    .option('--actor <external id>', 'end user who speaks')
    .option('--tools <module>', 'run calls of client tools with the functions that a module exports')
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options, positional } = parseWith(parser, args)
  const connection = await Connection.open(options)
  try {
    const tools = options.tools ? await (await import('./tools.ts')).loadTools(options.tools) : undefined
    const caller = new Caller(connection, loadCommands())
    const agent_id = await idOf(caller, 'listAgents', positional[0])
    const actor = options.actor ? { actor: { external_id: options.actor, name: options.actor } } : {}
    const { id } = options.session
      ? { id: options.session }
      : await caller.callById('createSession', { agent_id, ...actor }, { signal: interruption })
    const printer = new SessionPrinter(caller, id, { tools, isQuiet: options.quiet === true })
    await printer.open()
    if (!options.quiet) note(`session ${id}`)
    return await talk(caller, id, printer)
  } catch (error) {
    if (interruption.aborted) return (interruption.reason as Failure).exitCode
    return reportError(error, { connection })
  }
}

/** A conversation: each line of stdin is a message, whose turn ends before the next is sent. */
async function talk(caller: Caller, session_id: string, printer: SessionPrinter): Promise<number> {
  const { createInterface } = await import('node:readline')
  const lines = createInterface({ input: process.stdin, output: process.stderr, terminal: canAsk() })
  lines.on('SIGINT', () => process.kill(process.pid, 'SIGINT'))
  interruption.addEventListener('abort', () => lines.close(), { once: true })
  lines.setPrompt('> ')
  if (canAsk()) lines.prompt()
  let code: number = EXIT.done
  for await (const message of lines) {
    if (message.trim() === '/exit') break
    if (message.trim() !== '') {
      const id = await send(caller, { session_id, message })
      code = { completed: EXIT.done, failed: EXIT.workFailed, waits: EXIT.workWaits }[await printer.endOf(id)]
    }
    if (canAsk()) lines.prompt()
  }
  interruption.throwIfAborted()
  return code
}

/** Sends a message. Returns the ID of the turn that answers. */
async function send(caller: Caller, message: { session_id: string; message: string }): Promise<string> {
  const options = { signal: interruption }
  const { generation_id } = await caller.callById('sendSessionMessage', message, options)
  if (generation_id) return generation_id
  // A session without automatic replies requests one.
  const { session_id } = message
  return (await caller.callById('generateSessionReply', { session_id, wait: false }, options)).generation_id
}
