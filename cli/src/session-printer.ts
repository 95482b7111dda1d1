import type { Caller, Event } from './call.ts'
import { EXIT, Failure } from './failure.ts'
import { interruption } from './interrupt.ts'
import { isTerminal, note, visible, write } from './terminal.ts'
import type { ToolModule } from './tools.ts'

/** How a turn has ended. */
export type Outcome = 'completed' | 'failed' | 'waits'

export type SessionPrinterOptions = { tools?: ToolModule; isQuiet: boolean }

/** Prints what happens in a session: text on stdout; tools, approvals and calls for the client on stderr. */
export class SessionPrinter {
  readonly #caller: Caller
  readonly #id: string
  readonly #options: SessionPrinterOptions
  readonly #outcomes = new Map<string, Outcome>()
  readonly #waiting = new Map<string, (outcome: Outcome) => void>()
  #hold: Promise<string | null> | null = null
  /** Text of the running step that is printed. */
  #printed = ''
  #isLineOpen = false
  #onReady: () => void = () => {}
  #reading: Promise<never> = new Promise(() => {})

  constructor(caller: Caller, id: string, options: SessionPrinterOptions) {
    this.#caller = caller
    this.#id = id
    this.#options = options
  }

  /** Opens the stream of the session, before the first message, so that nothing is missed. */
  async open(): Promise<void> {
    const ready = new Promise<void>(resolve => {
      this.#onReady = resolve
    })
    const command = this.#caller.commandById('streamSession')
    const stream = await this.#caller.stream(command, { session_id: this.#id }, { signal: interruption })
    this.#reading = this.#read(stream)
    this.#reading.catch(() => {})
    await Promise.race([ready, this.#reading])
  }

  /** Prints nothing but one turn, once its ID is known; nothing at all if it is null. */
  printOnly(generationId: Promise<string | null>): void {
    this.#hold = generationId
    generationId.catch(() => {})
  }

  /** Waits for the end of a turn. Rejects if the stream ends first. */
  endOf(generationId: string): Promise<Outcome> {
    const ended = this.#outcomes.get(generationId)
    if (ended) return Promise.resolve(ended)
    return Promise.race([new Promise<Outcome>(resolve => this.#waiting.set(generationId, resolve)), this.#reading])
  }

  async #read(stream: AsyncIterable<Event>): Promise<never> {
    for await (const event of stream) {
      if (this.#hold && event.event !== 'ready') {
        const only = await this.#hold.catch(() => null)
        if (event.data?.generation_id !== only && event.event !== 'error') continue
      }
      await this.#print(event)
    }
    throw new Failure('the session has ended', EXIT.failed)
  }

  async #print({ event, data }: Event): Promise<void> {
    switch (event) {
      case 'ready':
        return this.#onReady()
      case 'turn_started':
        this.#printed = ''
        this.#outcomes.delete(data.generation_id)
        return
      case 'turn_text':
        return this.#replace(data.text ?? '')
      case 'delta':
        return this.#append(data.choices?.[0]?.delta?.content ?? '')
      case 'message':
        return this.#message(data)
      case 'tool':
        await this.#closeLine()
        return this.#note(
          `→ ${data.tool_name ?? data.label} … ${data.state === 'ended' ? (data.ok ? 'ok' : 'failed') : ''}`,
        )
      case 'requires_action':
        return this.#calls(data)
      case 'approval':
        return this.#approval(data)
      case 'turn_completed':
        await this.#closeLine()
        return this.#end(data.generation_id, 'completed')
      case 'turn_failed':
        await this.#closeLine()
        note(`muster: the turn failed: ${visible(data.error?.message ?? '')} (${visible(data.error?.code ?? '')})`)
        return this.#end(data.generation_id, 'failed')
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
    this.#isLineOpen = !text.endsWith('\n')
    await write(isTerminal() ? visible(text, 'lines') : text)
  }

  /** Prints the rest of a reply whose connection was lost before its end. */
  async #message({ role, origin, content }: Record<string, any>): Promise<void> {
    if (role !== 'assistant' || typeof content !== 'string') return
    if (origin === 'operator') {
      note('operator:')
      this.#printed = ''
    }
    await this.#replace(content)
    await this.#closeLine()
    this.#printed = ''
  }

  async #calls({ generation_id, tool_calls }: Record<string, any>): Promise<void> {
    if (tool_calls.length === 0) return
    await this.#closeLine()
    const calls = tool_calls.map((call: any) => ({
      id: call.tool_call_id ?? call.id,
      name: call.tool_name,
      arguments: call.args,
    }))
    const session_id = this.#id
    if (this.#options.tools) {
      const tool_outputs = await this.#options.tools.run(calls, this.#options.isQuiet)
      await this.#caller.callById('submitSessionToolOutputs', { session_id, generation_id, tool_outputs, wait: false })
      return
    }
    const { printCalls } = await import('./turns.ts')
    const command = this.#caller.commandById('sendSessionMessage')
    printCalls({ event: 'requires_action', generationId: generation_id, data: null, calls }, command, { session_id })
    this.#end(generation_id, 'waits')
  }

  async #approval({ id, status, proposed_action: action }: Record<string, any>): Promise<void> {
    await this.#closeLine()
    if (status !== 'pending') return this.#note(`approval ${id}: ${status}`)
    const what = action ? `${action.tool_name} ${JSON.stringify(action.arguments ?? {})}` : ''
    note(`an approval is required: ${visible(what)}`)
    note(`  muster approvals approve ${id}\n  muster approvals reject ${id} --reason '…'`)
  }

  #end(generationId: string, outcome: Outcome): void {
    this.#outcomes.set(generationId, outcome)
    this.#waiting.get(generationId)?.(outcome)
    this.#waiting.delete(generationId)
  }

  async #closeLine(): Promise<void> {
    if (this.#isLineOpen) await write('\n')
    this.#isLineOpen = false
  }

  #note(text: string): void {
    if (!this.#options.isQuiet) note(visible(text))
  }
}
