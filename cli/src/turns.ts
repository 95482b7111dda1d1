import type { EventStream } from '@muster/client'
import type { Caller, Event } from './call.ts'
import type { ApiCommand } from './commands.ts'
import { EXIT, Failure } from './failure.ts'
import { interruption } from './interrupt.ts'
import { isTerminal, note, type OutputSettings, printLine, visible, write } from './terminal.ts'
import type { ToolModule } from './tools.ts'

/** How a turn is printed. */
export type TurnOptions = {
  settings: OutputSettings
  /** Whether the text is printed as it comes. */
  isStreamed: boolean
  /** Whether every event is printed as a line of JSON. */
  areEventsPrinted: boolean
  tools?: ToolModule
  isCancelledOnInterrupt?: boolean
}

type ToolCall = { id: string; name: string; arguments: unknown }

const ROUNDS_MAX = 20

/** The turn as its last event describes it. */
export type TurnEnd = { event: 'completed' | 'requires_action'; generationId: string; data: any; calls: ToolCall[] }

/** Prints the events of one turn as they come. Returns its last event. */
class TurnPrinter {
  readonly #options: TurnOptions
  readonly #starts = new Map<string, number>()
  #generationId = ''
  #isLineOpen = false
  /** Text printed so far, of the current step and earlier ones. */
  text = ''

  constructor(options: TurnOptions) {
    this.#options = options
  }

  async follow(stream: EventStream<Event, any>): Promise<TurnEnd> {
    const cancel = () => {
      if (!this.#options.isCancelledOnInterrupt) return
      stream.cancel().catch(() => {})
    }
    interruption.addEventListener('abort', cancel, { once: true })
    try {
      for await (const event of stream) {
        if (this.#options.areEventsPrinted) await printLine(JSON.stringify(event))
        const end = await this.#print(event)
        if (end) return end
      }
    } catch (error) {
      if (interruption.aborted && this.#generationId && !this.#options.isCancelledOnInterrupt)
        note(`\nThe turn continues: muster generations get ${this.#generationId}`)
      throw error
    } finally {
      interruption.removeEventListener('abort', cancel)
      await this.closeLine()
    }
    throw new Failure('the stream ended without a result', EXIT.noAnswer)
  }

  async #print({ event, data }: Event): Promise<TurnEnd | null> {
    if (data?.generation_id) this.#generationId = data.generation_id
    switch (event) {
      case 'delta':
        await this.#append(data.choices?.[0]?.delta?.content ?? '')
        return null
      case 'tool_call':
        this.#starts.set(data.tool_call_id, Date.now())
        await this.#activity(`→ ${data.label ?? data.tool_name} …`)
        return null
      case 'tool_result': {
        const ms = Date.now() - (this.#starts.get(data.tool_call_id) ?? Date.now())
        await this.#activity(
          `→ ${data.label ?? data.tool_name} … ${data.ok ? 'ok' : 'failed'} ${(ms / 1000).toFixed(1)} s`,
        )
        return null
      }
      case 'step_restarted':
        await this.#activity('(restarted)')
        return null
      case 'error':
        throw new Failure(
          `the turn failed: ${data.message} (${data.code})`,
          EXIT.workFailed,
          this.#generationId && `Try: muster generations get ${this.#generationId}`,
        )
      case 'completed':
      case 'requires_action':
        return this.#end(event, data)
      default:
        return null
    }
  }

  async #end(event: TurnEnd['event'], data: any): Promise<TurnEnd> {
    const text = data.output?.content ?? data.content
    if (this.#options.isStreamed && event === 'completed' && this.text === '' && typeof text === 'string')
      await this.#append(text)
    const generationId = data.generation_id ?? (data.output !== undefined ? data.id : undefined) ?? this.#generationId
    const calls = (data.required_action?.tool_calls ?? []).map((call: any) => ({
      id: call.tool_call_id,
      name: call.tool_name,
      arguments: call.args,
    }))
    return { event, generationId, data, calls }
  }

  async #append(text: string): Promise<void> {
    if (!this.#options.isStreamed || text === '') return
    this.text += text
    this.#isLineOpen = !text.endsWith('\n')
    await write(isTerminal() ? visible(text, 'lines') : text)
  }

  async #activity(text: string): Promise<void> {
    if (!this.#options.isStreamed || this.#options.settings.isQuiet) return
    // On a terminal, stdout and stderr share the lines.
    if (isTerminal()) await this.closeLine()
    note(visible(text))
  }

  async closeLine(): Promise<void> {
    if (this.#isLineOpen) await write('\n')
    this.#isLineOpen = false
  }
}

/** Runs a command that starts a turn, with rounds of client tools. */
export async function runTurn(
  caller: Caller,
  command: ApiCommand,
  args: Record<string, unknown>,
  options: TurnOptions,
  requestOptions: object = {},
): Promise<{ end: TurnEnd | null; data: any }> {
  const printer = new TurnPrinter(options)
  const opened = await openTurn(caller, command, args, requestOptions)
  if (!opened.stream) return { end: null, data: opened.data }
  let end = await printer.follow(opened.stream)
  for (let round = 0; end.event === 'requires_action' && options.tools; round++) {
    if (round >= ROUNDS_MAX) throw new Failure(`the turn still has calls after ${ROUNDS_MAX} rounds`, EXIT.workWaits)
    const { calls, generationId } = end
    const outputs = await options.tools.run(calls, options.settings.isQuiet)
    const stream = await caller.stream(...submission(caller, command, args, generationId, outputs), {
      signal: interruption,
    })
    end = await printer.follow(stream)
  }
  return { end, data: end.data }
}

/** Opens the stream of a command; of a message that requests a turn, the stream of that turn. */
async function openTurn(
  caller: Caller,
  command: ApiCommand,
  args: Record<string, unknown>,
  requestOptions: object,
): Promise<{ stream?: EventStream<Event, any>; data?: any }> {
  const options = { signal: interruption, ...requestOptions }
  if (command.stream) return { stream: await caller.stream(command, args, options) }
  const data = await caller.call(command, args, options)
  if (!data?.generation_id) return { data }
  const following = caller.commandById('streamGeneration')
  return {
    data,
    stream: await caller.stream(following, { generation_id: data.generation_id }, { signal: interruption }),
  }
}

/** Returns the command and arguments that submit outputs for the turn of a command. */
export function submission(
  caller: Caller,
  { words }: ApiCommand,
  args: Record<string, unknown>,
  generationId: string,
  outputs: unknown[],
): [ApiCommand, Record<string, unknown>] {
  const common = { generation_id: generationId, tool_outputs: outputs }
  if (words[0] === 'sessions')
    return [caller.commandById('submitSessionToolOutputs'), { session_id: args.session_id, ...common }]
  return [caller.commandById('submitAgentToolOutputs'), { agent_id: args.agent_id, ...common }]
}

/** Prints the calls that a turn waits for, and the command that submits their outputs. */
export function printCalls(
  { calls, generationId }: TurnEnd,
  { words }: ApiCommand,
  args: Record<string, unknown>,
): void {
  note('muster: the turn waits for the outputs of its calls')
  for (const { id, name, arguments: given } of calls)
    note(
      `  ${visible(name)} ${visible(typeof given === 'string' ? given : JSON.stringify(given ?? {}))}   (${visible(id)})`,
    )
  const outputs = JSON.stringify(calls.map(({ id }) => ({ tool_call_id: id, output: '…' })))
  const target =
    words[0] === 'sessions'
      ? `sessions submit-tool-outputs ${args.session_id} --generation-id ${generationId}`
      : `agents submit-tool-outputs ${args.agent_id ?? '<agent_id>'} ${generationId}`
  note(`  Try: muster ${target} --tool-outputs '${visible(outputs)}'`)
}
