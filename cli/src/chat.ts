import { createInterface } from 'node:readline'
import { Caller, type Event } from './call.ts'
import { loadCommands } from './commands.ts'
import { Connection } from './connection.ts'
import { EXIT, Failure } from './failure.ts'
import { interruption } from './interrupt.ts'
import { idOf } from './named.ts'
import { addConnectionOptions, createParser, parseWith } from './parse.ts'
import { reportError } from './report.ts'
import { canAsk, isTerminal, note, printLine, visible, write } from './terminal.ts'
import type { ToolModule } from './tools.ts'

/** `muster chat <agent>`: a conversation on a session. Each line of stdin is a message. */
export async function chatCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster chat'), { output: false })
    .description('Talk to an agent. Each line is a message; Ctrl-D ends the conversation.')
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
    const actor = options.actor ? { actor: { external_id: options.actor } } : {}
    const { id } = options.session
      ? { id: options.session }
      : await caller.callById('createSession', { agent_id, ...actor }, { signal: interruption })
    const chat = new Chat(caller, id, tools, options.quiet === true)
    return await chat.run()
  } catch (error) {
    if (interruption.aborted) return (interruption.reason as Failure).exitCode
    return reportError(error, { connection })
  }
}

/** How a turn has ended. */
type Outcome = 'completed' | 'failed' | 'waits'

/** A conversation, whose output is the event stream of its session. */
class Chat {
  readonly #caller: Caller
  readonly #id: string
  readonly #tools: ToolModule | undefined
  readonly #isQuiet: boolean
  /** Text of the running step that is printed. */
  #printed = ''
  #hasText = false
  #ends: ((outcome: Outcome) => void)[] = []
  #onReady: () => void = () => {}

  constructor(caller: Caller, id: string, tools: ToolModule | undefined, isQuiet: boolean) {
    this.#caller = caller
    this.#id = id
    this.#tools = tools
    this.#isQuiet = isQuiet
  }

  async run(): Promise<number> {
    const ready = new Promise<void>(resolve => {
      this.#onReady = resolve
    })
    // Opened before the first message, so that nothing is missed.
    const stream = await this.#caller.stream(
      this.#caller.commandById('streamSession'),
      { session_id: this.#id },
      { signal: interruption },
    )
    const reading = this.#read(stream)
    await Promise.race([ready, reading])
    this.#note(`session ${this.#id}`)
    const talking = this.#talk()
    return Promise.race([talking, reading])
  }

  async #talk(): Promise<number> {
    const lines = createInterface({ input: process.stdin, output: process.stderr, terminal: canAsk() })
    lines.on('SIGINT', () => process.kill(process.pid, 'SIGINT'))
    lines.setPrompt('> ')
    if (canAsk()) lines.prompt()
    let code: number = EXIT.done
    for await (const line of lines) {
      if (line.trim() !== '') {
        const outcome = await this.#send(line)
        code = outcome === 'failed' ? EXIT.workFailed : outcome === 'waits' ? EXIT.workWaits : EXIT.done
      }
      if (canAsk()) lines.prompt()
    }
    return code
  }

  /** Sends a message and waits for the end of its turn. */
  async #send(message: string): Promise<Outcome> {
    const ended = new Promise<Outcome>(resolve => this.#ends.push(resolve))
    const session_id = this.#id
    const { generation_id } = await this.#caller.callById('sendSessionMessage', { session_id, message }, { signal: interruption })
    // A session without automatic replies requests one.
    if (!generation_id) await this.#caller.callById('generateSessionReply', { session_id, wait: false }, { signal: interruption })
    return ended
  }

  async #read(stream: AsyncIterable<Event>): Promise<number> {
    for await (const event of stream) await this.#print(event)
    throw new Failure('the session has ended', EXIT.failed)
  }

  async #print({ event, data }: Event): Promise<void> {
    switch (event) {
      case 'ready':
        return this.#onReady()
      case 'turn_started':
        this.#printed = ''
        this.#hasText = false
        return
      case 'turn_text':
        return this.#replace(data.text ?? '')
      case 'delta':
        return this.#append(data.choices?.[0]?.delta?.content ?? '')
      case 'message':
        return this.#message(data)
      case 'tool':
        await this.#closeLine()
        return this.#note(`→ ${data.tool_name ?? data.label} … ${data.state === 'ended' ? (data.ok ? 'ok' : 'failed') : ''}`)
      case 'requires_action':
        return this.#calls(data)
      case 'approval':
        return this.#approval(data)
      case 'turn_completed':
        await this.#closeLine()
        return this.#end('completed')
      case 'turn_failed':
        await this.#closeLine()
        note(`muster: the turn failed: ${visible(data.error?.message ?? '')} (${visible(data.error?.code ?? '')})`)
        return this.#end('failed')
      case 'error':
        throw new Failure(`${data.message} (${data.code})`, EXIT.workFailed)
      default:
    }
  }

  /** Prints the part of the text of a step that is new, or all of it if the step has restarted. */
  async #replace(text: string): Promise<void> {
    if (!text.startsWith(this.#printed) || text === '') {
      await this.#closeLine()
      this.#printed = ''
    }
    await this.#append(text.slice(this.#printed.length))
  }

  async #append(text: string): Promise<void> {
    if (text === '') return
    this.#printed += text
    this.#hasText = true
    await write(isTerminal() ? visible(text, 'lines') : text)
  }

  async #message({ role, origin, content }: Record<string, any>): Promise<void> {
    if (role !== 'assistant' || typeof content !== 'string') return
    if (origin === 'operator') note('operator:')
    if (origin === 'operator' || !this.#hasText) await this.#append(content)
    await this.#closeLine()
  }

  async #calls({ generation_id, tool_calls }: Record<string, any>): Promise<void> {
    if (tool_calls.length === 0) return
    await this.#closeLine()
    const calls = tool_calls.map((call: any) => ({ id: call.tool_call_id ?? call.id, name: call.tool_name, arguments: call.args }))
    const session_id = this.#id
    if (this.#tools) {
      const tool_outputs = await this.#tools.run(calls, this.#isQuiet)
      await this.#caller.callById('submitSessionToolOutputs', { session_id, generation_id, tool_outputs, wait: false })
      return
    }
    const { printCalls } = await import('./turns.ts')
    const command = this.#caller.commandById('sendSessionMessage')
    printCalls({ event: 'requires_action', generationId: generation_id, data: null, calls }, command, { session_id })
    this.#end('waits')
  }

  async #approval({ id, status, proposed_action: action }: Record<string, any>): Promise<void> {
    await this.#closeLine()
    if (status !== 'pending') return this.#note(`approval ${id}: ${status}`)
    const what = action ? `${action.tool_name ?? action.name ?? ''} ${JSON.stringify(action.arguments ?? {})}` : ''
    note(`waits for an approval: ${visible(what)}`)
    note(`  muster approvals approve ${id}\n  muster approvals reject ${id} --reason '…'`)
  }

  #end(outcome: Outcome): void {
    for (const each of this.#ends.splice(0)) each(outcome)
  }

  async #closeLine(): Promise<void> {
    if (this.#printed !== '' && !this.#printed.endsWith('\n')) {
      await write('\n')
      this.#printed = ''
    }
  }

  #note(text: string): void {
    if (!this.#isQuiet) note(visible(text))
  }
}
