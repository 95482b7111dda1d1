import { CANCEL_REASONS, CANCELLED } from '#execution/generations/request/cancel-turn.ts'
import { NESTED_AGENT } from '#execution/generations/streams/frames.ts'
import type { StateChange } from '#execution/generations/tools/update-state.ts'
import { type Message, PROTOCOL_VERSION, RESULT_PREFIX, stepOfMessage, turnOfMessage } from './input.ts'

/** An event of the protocol. */
export type AgUiEvent = { type: string; [field: string]: unknown }

type Json = Record<string, any>

/** A call of a settled step, with its result. */
export type SettledCall = { tool_call_id: string; args: unknown; result: unknown; failed: boolean }

/** Reads of the translation of a turn, in addition to its frames. */
export type TurnReads = {
  /** Calls of the turn's steps; null if the caller may not read them. */
  calls(generationId: string): Promise<ReadonlyMap<string, SettledCall> | null>
  /** Tokens of the turn; undefined if the caller may not read them. */
  usage(generationId: string): Promise<Json[] | undefined>
  /** Whether the turn was cancelled, if its failure does not say it. */
  isCancelled(generationId: string): Promise<boolean>
  /** Returns the events of a change of the state by the agent. */
  stateChange(change: StateChange): AgUiEvent[]
  /** Returns a snapshot of the state, unless the client has it. */
  stateAtEnd(): Promise<AgUiEvent[]>
  /** Returns a snapshot of the state. */
  stateSnapshot(): Promise<AgUiEvent>
  /** Returns the name of an agent that the turn runs. */
  agentName(agentId: string): Promise<string>
  /** Returns the approvals filed in the turn. */
  approvals(ids: readonly string[]): Promise<FiledApprovals>
}

/** An approval that the end user decides, with the call as the end user sees it. */
type Interrupt = { interrupt: Json & { toolCallId: string }; name: string; args: Json }

/** Approvals filed in a turn: events about approvals of operators, and interrupts. */
export type FiledApprovals = { events: AgUiEvent[]; interrupts: Interrupt[] }

type Run = { threadId: string; runId: string }

/** Text of a message of the assistant that this run sends. */
type OpenText = { id: string; text: string }

/** Whether a failure is a cancel or the replacement of the turn. */
export const isCancel = ({ code, message, meta }: Json): boolean =>
  code === CANCELLED.code && (message === CANCELLED.message || CANCEL_REASONS.includes(meta?.reason))

/** Ends a run without a turn. */
export const finishedRun = (run: Run, fields: Json = { outcome: { type: 'success' } }): AgUiEvent => ({
  type: 'RUN_FINISHED',
  ...run,
  ...fields,
})

export const startedRun = (run: Run): AgUiEvent => ({ type: 'RUN_STARTED', ...run, protocolVersion: PROTOCOL_VERSION })

export const runError = ({ code, message }: { code: string; message: string }): AgUiEvent => ({
  type: 'RUN_ERROR',
  message,
  code,
})

export const messagesSnapshot = (messages: readonly Message[]): AgUiEvent => ({
  type: 'MESSAGES_SNAPSHOT',
  messages: messages.map(message => ({ ...message })),
})

/**
 * Translates the frames of one turn to events. Its messages and tool calls are ended before the run is: a client refuses
 * any other order.
 */
export class TurnTranslation {
  private readonly run: Run
  private readonly reads: TurnReads
  /** Whether the caller sees steps and calls on the server. */
  private readonly detailed: boolean
  /** Whether the caller sees only tools with a label. */
  private readonly labelled: boolean
  /** The messages of the client and of this run. */
  private readonly messages: Message[]
  private generation: string
  private step = 1
  private restarts = 0
  private text: OpenText | null = null
  /** The last text whose message ended. */
  private sent: OpenText | null = null
  private stepName: string | null = null
  /** Calls on the server whose arguments and results are not sent yet, by id: whether they succeeded. */
  private readonly serverCalls = new Map<string, boolean | null>()
  private readonly approvals: string[] = []

  constructor(
    run: Run,
    turn: { generation_id: string; detailed: boolean; labelled: boolean; messages: Message[] },
    reads: TurnReads,
  ) {
    this.run = run
    this.reads = reads
    this.detailed = turn.detailed
    this.labelled = turn.labelled
    this.messages = turn.messages
    this.generation = turn.generation_id
    const known = turn.messages.findLast(message => turnOfMessage(message.id) === turn.generation_id) as
      | Json
      | undefined
    // The step that a run before has shown, of a turn that this one resumes.
    if (!known) return
    this.step = stepOfMessage(known.id)
    this.sent = { id: known.id, text: typeof known.content === 'string' ? known.content : '' }
  }

  /** Returns the events of a frame. */
  async translate(event: string, data: Json): Promise<AgUiEvent[]> {
    switch (event) {
      case 'started':
        this.generation = data.generation_id
        return []
      case 'delta':
        return this.append(data.choices[0].delta.content)
      case 'tool_call':
        return this.startCall(data)
      case 'tool_result':
        return this.endCall(data)
      case NESTED_AGENT:
        return this.startSubagent(data)
      case 'step_settled':
        return this.endStep(data.step)
      case 'step_restarted':
        return this.restart(data.step)
      case 'state':
        return this.reads.stateChange(data as StateChange)
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

  private messageId(): string {
    const id = `msg_${this.generation}_${this.step}`
    return this.restarts === 0 ? id : `${id}_${this.restarts}`
  }

  private openStep(): AgUiEvent[] {
    if (!this.detailed || this.stepName !== null) return []
    this.stepName = `step-${this.step}`
    return [{ type: 'STEP_STARTED', stepName: this.stepName }]
  }

  private closeStep(): AgUiEvent[] {
    if (this.stepName === null) return []
    const stepName = this.stepName
    this.stepName = null
    return [{ type: 'STEP_FINISHED', stepName }]
  }

  private append(delta: string): AgUiEvent[] {
    if (delta === '') return []
    const events = this.openStep()
    if (!this.text) {
      this.text = { id: this.messageId(), text: '' }
      events.push({ type: 'TEXT_MESSAGE_START', messageId: this.text.id, role: 'assistant' })
    }
    this.text.text += delta
    return [...events, { type: 'TEXT_MESSAGE_CONTENT', messageId: this.text.id, delta }]
  }

  private closeText(): AgUiEvent[] {
    if (!this.text) return []
    const { id, text } = this.text
    this.sent = this.text
    this.text = null
    this.messages.push({ id, role: 'assistant', content: text } as Message)
    return [{ type: 'TEXT_MESSAGE_END', messageId: id }]
  }

  /** Returns the message to which calls of the running step belong, which the client creates if it has no text. */
  private callingMessage(): Json {
    const id = this.sent && stepOfMessage(this.sent.id) === this.step ? this.sent.id : this.messageId()
    const existing = this.messages.find(message => message.id === id) as Json | undefined
    if (existing) return existing
    const made = { id, role: 'assistant' as const }
    this.messages.push(made)
    return made
  }

  private openCall(toolCallId: string, toolCallName: string): AgUiEvent {
    return { type: 'TOOL_CALL_START', toolCallId, toolCallName, parentMessageId: this.callingMessage().id }
  }

  private closeCall(toolCallId: string, name: string, args: unknown): AgUiEvent[] {
    const text = JSON.stringify(args ?? {})
    const message = this.callingMessage()
    message.toolCalls = [
      ...(message.toolCalls ?? []),
      { id: toolCallId, type: 'function', function: { name, arguments: text } },
    ]
    return [
      { type: 'TOOL_CALL_ARGS', toolCallId, delta: text },
      { type: 'TOOL_CALL_END', toolCallId },
    ]
  }

  private activity(toolCallId: string, label: string | undefined, content: Json): AgUiEvent[] {
    if (this.labelled && label === undefined) return []
    return [
      {
        type: 'ACTIVITY_SNAPSHOT',
        messageId: `act_${this.generation}_${toolCallId}`,
        activityType: 'svc:tool',
        content: { label: label ?? LABEL, ...content },
      },
    ]
  }

  private readonly callNames = new Map<string, string>()

  private startCall({ tool_call_id, tool_name, label }: Json): AgUiEvent[] {
    const events = [
      ...this.openStep(),
      ...this.closeText(),
      ...this.activity(tool_call_id, label, { state: 'started' }),
    ]
    if (!this.detailed || this.serverCalls.has(tool_call_id)) return events
    this.serverCalls.set(tool_call_id, null)
    this.callNames.set(tool_call_id, tool_name)
    return [...events, this.openCall(tool_call_id, tool_name)]
  }

  private endCall({ tool_call_id, label, ok }: Json): AgUiEvent[] {
    if (this.serverCalls.has(tool_call_id)) this.serverCalls.set(tool_call_id, ok)
    return [...this.activity(tool_call_id, label, { state: 'ended', ok }), ...this.endSubagent(tool_call_id, ok)]
  }

  /** Agents run by calls of the turn: whether the run of the call's agent is open, by call. */
  private readonly subagents = new Map<string, boolean>()

  private subagentId(toolCallId: string): string {
    return `sub_${this.generation}_${toolCallId}`
  }

  private async startSubagent({ tool_call_id, agent_id }: Json): Promise<AgUiEvent[]> {
    // A repeated call of a lost worker is shown as one.
    if (!this.detailed || this.subagents.has(tool_call_id)) return []
    this.subagents.set(tool_call_id, true)
    const name = await this.reads.agentName(agent_id)
    const subagentRunId = this.subagentId(tool_call_id)
    return [{ type: 'SUBAGENT_STARTED', subagentRunId, name, parentToolCallId: tool_call_id }]
  }

  private endSubagent(toolCallId: string, ok: boolean): AgUiEvent[] {
    if (!this.subagents.get(toolCallId)) return []
    this.subagents.set(toolCallId, false)
    const subagentRunId = this.subagentId(toolCallId)
    return ok
      ? [{ type: 'SUBAGENT_FINISHED', subagentRunId }]
      : [{ type: 'SUBAGENT_ERROR', subagentRunId, message: 'The agent could not be run to its end' }]
  }

  /** Sends arguments and results of the step's calls on the server. */
  private async settleCalls(): Promise<AgUiEvent[]> {
    if (this.serverCalls.size === 0) return []
    // Open only if the turn ends before the result of the call.
    const subagents = [...this.subagents.keys()].flatMap(id => this.endSubagent(id, false))
    const calls = await this.reads.calls(this.generation)
    const events = [...this.serverCalls].flatMap(([id, ok]): AgUiEvent[] => {
      const call = calls?.get(id)
      const content = call ? JSON.stringify(call.result ?? null) : ok === null ? 'unknown' : ok ? 'done' : 'failed'
      const messageId = `${RESULT_PREFIX}${this.generation}_${id}`
      const ended = this.closeCall(id, this.callNames.get(id) as string, call?.args)
      this.messages.push({ id: messageId, role: 'tool', toolCallId: id, content } as Message)
      return [...ended, { type: 'TOOL_CALL_RESULT', messageId, toolCallId: id, content, role: 'tool' }]
    })
    this.serverCalls.clear()
    return [...subagents, ...events]
  }

  private async endStep(step: number): Promise<AgUiEvent[]> {
    const events = [...this.closeText(), ...(await this.settleCalls()), ...this.closeStep()]
    this.step = step + 1
    this.restarts = 0
    return events
  }

  /** Voids the text of the running step: the client gets its messages without it. */
  private restart(step: number): AgUiEvent[] {
    this.step = step
    if (!this.text) return []
    const events = this.closeText()
    this.messages.pop()
    this.sent = null
    this.restarts += 1
    return [...events, messagesSnapshot(this.messages)]
  }

  /** Ends the text of the last step, which is what the turn has stored. */
  private reconcile(stored: string | null): AgUiEvent[] {
    const sent = this.text ?? this.sent
    if (!stored || sent?.text === stored) return this.closeText()
    // Of a last step that is settled, or of a turn whose frames are deleted.
    if (!sent || stepOfMessage(sent.id) < this.step - 1) return [...this.append(stored), ...this.closeText()]
    const events = this.closeText()
    const last = this.messages.find(({ id }) => id === sent.id) as Json
    last.content = stored
    return [...events, messagesSnapshot(this.messages)]
  }

  private async pause({ content, required_action }: Json): Promise<AgUiEvent[]> {
    const calls: Json[] = required_action?.tool_calls ?? []
    const events = [...this.openStep(), ...this.reconcile(content), ...(await this.settleCalls())]
    for (const { tool_call_id, tool_name, args } of calls)
      events.push(this.openCall(tool_call_id, tool_name), ...this.closeCall(tool_call_id, tool_name, args))
    const pendingToolCallIds = calls.map(({ tool_call_id }) => tool_call_id)
    return [
      ...events,
      ...this.closeStep(),
      ...(await this.reads.stateAtEnd()),
      finishedRun(this.run, { outcome: { type: 'success', pendingToolCallIds }, ...(await this.usage()) }),
    ]
  }

  private async complete({ content }: Json): Promise<AgUiEvent[]> {
    const events = [...this.reconcile(content), ...(await this.settleCalls()), ...this.closeStep()]
    if (this.approvals.length > 0) {
      const filed = await this.reads.approvals(this.approvals)
      events.push(...filed.events)
      if (filed.interrupts.length > 0) return [...events, ...(await this.interrupt(filed.interrupts))]
    }
    events.push(...(await this.reads.stateAtEnd()))
    return [...events, finishedRun(this.run, { outcome: { type: 'success' }, ...(await this.usage()) })]
  }

  /** Ends the run with interrupts, after the state and the messages, from which the client continues later. */
  private async interrupt(interrupts: readonly Interrupt[]): Promise<AgUiEvent[]> {
    const calls = interrupts.flatMap(({ interrupt: { toolCallId }, name, args }) => [
      this.openCall(toolCallId, name),
      ...this.closeCall(toolCallId, name, args),
    ])
    const outcome = { type: 'interrupt', interrupts: interrupts.map(({ interrupt }) => interrupt) }
    const snapshots = [await this.reads.stateSnapshot(), messagesSnapshot(this.messages)]
    return [...calls, ...snapshots, finishedRun(this.run, { outcome, ...(await this.usage()) })]
  }

  private async usage(): Promise<Json> {
    const usage = this.detailed ? await this.reads.usage(this.generation) : undefined
    return usage ? { usage } : {}
  }

  private async fail(failure: Json): Promise<AgUiEvent[]> {
    const events = [...this.closeText(), ...(await this.settleCalls()), ...this.closeStep()]
    return isCancel(failure) || (await this.reads.isCancelled(this.generation))
      ? [...events, finishedRun(this.run, { outcome: { type: 'cancelled' } })]
      : [...events, runError(failure as { code: string; message: string })]
  }
}

/** What an activity of a tool shows without a label. */
const LABEL = 'Working'
