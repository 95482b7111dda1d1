import type { FiledApprovals, SettledCall } from '../ag-ui/events.ts'

/** A chunk of the UI message stream. */
export type Chunk = { type: string; [field: string]: unknown }

type Json = Record<string, any>

/** Reads of the translation of a turn, in addition to its frames. */
export type TurnReads = {
  /** Calls of the turn's steps; null if the caller may not read them. */
  calls(generationId: string): Promise<ReadonlyMap<string, SettledCall> | null>
  /** Outputs of calls of the client in settled steps of the turn. */
  outputs(generationId: string): Promise<ReadonlyMap<string, unknown>>
  /** Whether the turn was cancelled, if its failure does not say it. */
  isCancelled(failure: Json): Promise<boolean>
  /** Returns the approvals filed in the turn. */
  approvals(ids: readonly string[]): Promise<FiledApprovals>
}

export const startOf = (messageId?: string): Chunk => ({ type: 'start', ...(messageId !== undefined && { messageId }) })

export const finishOf = (finishReason = 'stop'): Chunk => ({ type: 'finish', finishReason })

/** An error as the chat shows it. */
export const errorOf = ({ message }: { message: string }): Chunk => ({ type: 'error', errorText: message })

/** Returns how the call of an approval ended. */
export function approvalResult(toolCallId: string, outcome: unknown): Chunk {
  if (outcome === 'declined') return { type: 'tool-output-denied', toolCallId }
  const fields = { toolCallId, providerExecuted: true, dynamic: true }
  return outcome === 'done'
    ? { type: 'tool-output-available', ...fields, output: outcome }
    : { type: 'tool-output-error', ...fields, errorText: 'The call failed' }
}

type PendingCall = { tool_call_id: string; tool_name: string; args: unknown }

/**
 * Translates the frames of one turn to chunks of one message. A step of the message begins with the first part that the
 * caller sees, so that calls of the client are always in the last step with parts.
 */
export class TurnChunks {
  private readonly reads: TurnReads
  /** Whether the caller sees calls on the server, with arguments and results, and reasoning. */
  private readonly detailed: boolean
  /** Whether the caller sees only tools with a label. */
  private readonly labelled: boolean
  private readonly generation: string
  private step = 1
  private isStepOpen = false
  /** The open part of text or reasoning. */
  private open: { type: 'text' | 'reasoning'; id: string } | null = null
  private parts = 0
  /** Text of the last step that had one. */
  private text: { step: number; value: string } | null = null
  /** Names of calls on the server without arguments and results so far, by id, with their success. */
  private readonly serverCalls = new Map<string, { name: string; ok: boolean | null }>()
  private readonly approvals: string[] = []
  /** Calls of the client, until it is known whether they wait. */
  private pending: PendingCall[] | null = null
  private isOver = false

  constructor(turn: { generation_id: string; detailed: boolean; labelled: boolean }, reads: TurnReads) {
    this.generation = turn.generation_id
    this.detailed = turn.detailed
    this.labelled = turn.labelled
    this.reads = reads
  }

  /** Whether the turn has failed or was cancelled, so that nothing may follow. */
  get hasFailed(): boolean {
    return this.isOver
  }

  /** Returns the chunks of a frame. */
  async translate(event: string, data: Json): Promise<Chunk[]> {
    // The turn was resumed: its calls are answered.
    const answered = this.pending && event !== 'error' ? await this.answeredCalls() : []
    return [...answered, ...(await this.chunksOf(event, data))]
  }

  /** Returns the chunks after the last frame; `isLast` unless another turn continues the message. */
  end(isLast = true): Chunk[] {
    if (this.isOver) return []
    const calls = (this.pending ?? []).map(
      ({ tool_call_id, tool_name, args }): Chunk => ({
        type: 'tool-input-available',
        toolCallId: tool_call_id,
        toolName: tool_name,
        input: args ?? {},
      }),
    )
    const opened = calls.length > 0 ? this.openStep() : []
    const chunks = [...opened, ...calls, ...this.closeStep()]
    return isLast ? [...chunks, finishOf(this.pending ? 'tool-calls' : 'stop')] : chunks
  }

  private async chunksOf(event: string, data: Json): Promise<Chunk[]> {
    switch (event) {
      case 'delta':
        return this.append('text', data.choices[0].delta.content)
      case 'reasoning':
        return this.detailed ? this.append('reasoning', data.text) : []
      case 'tool_call':
        return this.startCall(data)
      case 'tool_result':
        return this.endCall(data)
      case 'step_settled':
        return this.settleStep(data.step)
      case 'step_restarted':
        return this.restart(data.step)
      case 'approval':
        this.approvals.push(data.approval_id)
        return []
      case 'requires_action':
        return this.pause(data)
      case 'completed':
        return this.complete(data)
      case 'error':
        return this.fail(data)
      default:
        return []
    }
  }

  private openStep(): Chunk[] {
    if (this.isStepOpen) return []
    this.isStepOpen = true
    return [{ type: 'start-step' }]
  }

  private closeStep(): Chunk[] {
    const closed = this.closePart()
    if (!this.isStepOpen) return closed
    this.isStepOpen = false
    return [...closed, { type: 'finish-step' }]
  }

  private append(type: 'text' | 'reasoning', delta: string): Chunk[] {
    if (delta === '') return []
    const chunks = this.openStep()
    if (this.open?.type !== type) {
      this.parts += 1
      chunks.push(...this.closePart())
      this.open = { type, id: `${type}-${this.parts}` }
      chunks.push({ type: `${type}-start`, id: this.open.id })
    }
    if (type === 'text') this.text = { step: this.step, value: this.stepText() + delta }
    return [...chunks, { type: `${type}-delta`, id: this.open.id, delta }]
  }

  private stepText(): string {
    return this.text?.step === this.step ? this.text.value : ''
  }

  private closePart(): Chunk[] {
    if (!this.open) return []
    const { type, id } = this.open
    this.open = null
    return [{ type: `${type}-end`, id }]
  }

  private activity(toolCallId: string, label: string | undefined, data: Json): Chunk[] {
    if (this.detailed || (this.labelled && label === undefined)) return []
    const id = `act_${this.generation}_${toolCallId}`
    return [...this.openStep(), { type: 'data-activity', id, data: { label: label ?? LABEL, ...data } }]
  }

  private startCall({ tool_call_id, tool_name, label }: Json): Chunk[] {
    const chunks = [...this.closePart(), ...this.activity(tool_call_id, label, { state: 'started' })]
    if (!this.detailed || this.serverCalls.has(tool_call_id)) return chunks
    this.serverCalls.set(tool_call_id, { name: tool_name, ok: null })
    const call = {
      toolCallId: tool_call_id,
      toolName: tool_name,
      ...ON_SERVER,
      ...(label !== undefined && { title: label }),
    }
    return [...chunks, ...this.openStep(), { type: 'tool-input-start', ...call }]
  }

  private endCall({ tool_call_id, label, ok }: Json): Chunk[] {
    const call = this.serverCalls.get(tool_call_id)
    if (call) call.ok = ok
    return this.activity(tool_call_id, label, { state: 'ended', ok })
  }

  /** Sends arguments and results of the step's calls on the server. */
  private async settleCalls(): Promise<Chunk[]> {
    if (this.serverCalls.size === 0) return []
    const calls = await this.reads.calls(this.generation)
    const chunks = [...this.serverCalls].flatMap(([toolCallId, { name: toolName, ok }]): Chunk[] => {
      const call = calls?.get(toolCallId)
      const failed = call ? call.failed : ok === false
      const output = call ? (call.result ?? null) : ok === null ? 'unknown' : 'done'
      return [
        { type: 'tool-input-available', toolCallId, toolName, ...ON_SERVER, input: call?.args ?? {} },
        failed
          ? { type: 'tool-output-error', toolCallId, ...ON_SERVER, errorText: failureText(call?.result) }
          : { type: 'tool-output-available', toolCallId, ...ON_SERVER, output },
      ]
    })
    this.serverCalls.clear()
    return chunks
  }

  private async settleStep(step: number): Promise<Chunk[]> {
    const chunks = [...this.closePart(), ...(await this.settleCalls()), ...this.closeStep()]
    this.step = step + 1
    return chunks
  }

  /** Voids the parts of the running step. */
  private restart(step: number): Chunk[] {
    this.step = step
    return this.reset()
  }

  /** Removes the parts of the open step. */
  private reset(): Chunk[] {
    if (this.text?.step === this.step) this.text = null
    if (!this.isStepOpen) return []
    this.serverCalls.clear()
    return [...this.closePart(), { type: 'reset-step' }]
  }

  /** Shows the stored text of the last step. */
  private reconcile(stored: string | null): Chunk[] {
    if (!stored || this.text?.value === stored) return []
    const isOfOtherStep = !this.text || this.text.step < this.step - 1 || !this.isStepOpen
    return [...(isOfOtherStep ? [] : this.reset()), ...this.append('text', stored)]
  }

  private async pause({ content, required_action }: Json): Promise<Chunk[]> {
    const chunks = [...this.reconcile(content), ...this.closePart(), ...(await this.settleCalls())]
    this.pending = required_action?.tool_calls ?? []
    return chunks
  }

  /**
   * Returns answered calls of the client, of a response that is replayed. Their input is sent as text: a complete input would
   * make the client run the tool again.
   */
  private async answeredCalls(): Promise<Chunk[]> {
    const calls = this.pending ?? []
    this.pending = null
    const outputs = await this.reads.outputs(this.generation)
    return [
      ...this.openStep(),
      ...calls.flatMap(({ tool_call_id: toolCallId, tool_name: toolName, args }) => [
        { type: 'tool-input-start', toolCallId, toolName },
        { type: 'tool-input-delta', toolCallId, inputTextDelta: JSON.stringify(args ?? {}) },
        { type: 'tool-output-available', toolCallId, output: outputs.get(toolCallId) ?? null },
      ]),
    ]
  }

  private async complete({ content }: Json): Promise<Chunk[]> {
    const chunks = [...this.reconcile(content), ...this.closePart(), ...(await this.settleCalls())]
    if (this.approvals.length === 0) return chunks
    const { events, interrupts } = await this.reads.approvals(this.approvals)
    if (events.length + interrupts.length > 0) chunks.push(...this.openStep())
    for (const { value } of events)
      chunks.push({ type: 'data-approval', data: { status: 'pending', ...(value as Json) } })
    for (const { interrupt, name: toolName, args: input } of interrupts) {
      const { id: approvalId, toolCallId, message: reason } = interrupt
      chunks.push(
        { type: 'tool-input-available', toolCallId, toolName, title: reason, input, ...ON_SERVER },
        { type: 'tool-approval-request', approvalId, toolCallId, reason },
      )
    }
    return chunks
  }

  private async fail(failure: Json): Promise<Chunk[]> {
    const chunks = [...this.closePart(), ...(await this.settleCalls()), ...this.closeStep()]
    this.isOver = true
    return (await this.reads.isCancelled(failure))
      ? [...chunks, { type: 'abort', reason: 'cancelled' }]
      : [...chunks, errorOf(failure as { message: string })]
  }
}

/** What an activity of a tool shows without a label. */
const LABEL = 'Working'

/** Fields of calls on the server, which the client neither runs nor answers. */
const ON_SERVER = { providerExecuted: true, dynamic: true }

function failureText(result: unknown): string {
  const { error } = (result ?? {}) as { error?: unknown }
  const { message } = (error ?? {}) as { message?: unknown }
  return typeof error === 'string' ? error : typeof message === 'string' ? message : 'The call failed'
}
