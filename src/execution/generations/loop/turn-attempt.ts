import { Counter } from 'prom-client'
import { addUsageEffectsLater, recordUsageLater, type UsageDraft } from '#control/usage/meter.ts'
import { type PricedUsage, priceUsage } from '#control/usage/price-usage.ts'
import { systemClock } from '#core/base/clock.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { instanceId } from '#core/base/holder.ts'
import { PROJECT_LABEL, projectLabels } from '#core/base/project-labels.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { logAttempt } from '#core/work/attempt.ts'
import type { AgentRow } from '#execution/agents/model.ts'
import type { LoadedRoute } from '#execution/model-routes/store.ts'
import type { ModelAnswer, UnusedAnswer } from '#execution/providers/model-messages.ts'
import { SentRequests } from '../journal/sent-request.ts'
import { openStepOf, storedStep } from '../journal/step.ts'
import { type Entry, type JournalState, journalRows, readJournal, writeJournal } from '../journal/store.ts'
import { type GenerationRow, generationKind, type JournalStepRow, type OpenStep, type TurnData } from '../model.ts'
import type { Continuation } from '../recovery/interruptions.ts'
import { turnQueue } from '../request/create.ts'
import type { Attachments } from '../request/message-files.ts'
import type { StepLogprobs } from '../request/turn-result.ts'
import type { Frame } from '../streams/frame-store.ts'
import { FrameWriter, STEP_SETTLED, startedOf } from '../streams/frames.ts'
import { notifyFrames, TurnClaimLost } from '../streams/live-turns.ts'
import { TURN_CHANNEL } from '../streams/turn-end.ts'
import type { StreamEvent } from '../tools/tool-calls.ts'
import { NO_TOOLS, type Toolbox } from '../tools/toolbox.ts'
import { draftLostCalls, draftUnusedAnswer, type ProviderTypes, providerTypesOf } from './metering.ts'
import { sealTurnData } from './turn-data.ts'
import { withMemory } from './turn-hooks.ts'
import type { TurnContext } from './turn-owner.ts'
import {
  claimParts,
  isWritten,
  journalStep,
  type LoadedTurn,
  releaseGeneration,
  requeueGeneration,
} from './turn-store.ts'

export const turnsTotal = new Counter({
  name: 'muster_turns_total',
  help: 'Agent turns by outcome',
  labelNames: ['outcome', PROJECT_LABEL],
  registers: [],
})

/** Last steps whose probabilities are kept; one may have 256 KiB. */
const MAX_LOGPROB_STEPS = 8

/** One attempt at a turn: its claim, its progress, and the fenced writes until it settles or pauses. */
export class TurnAttempt {
  readonly services: Services
  readonly context: TurnContext
  readonly loaded: LoadedTurn
  readonly agent: AgentRow
  readonly requests = new SentRequests()
  #generation: GenerationRow
  #data: TurnData | null = null
  readonly #steps: JournalStepRow[]
  #route: LoadedRoute | null
  #frames: FrameWriter
  #partial = ''
  readonly #reasoning: string[] = []
  readonly #logprobs: StepLogprobs[] = []
  #tools: Toolbox = NO_TOOLS
  #open: JournalState['open']
  #journalled: boolean
  #lastAnswer: OpenStep | null
  #providerTypes: ProviderTypes
  #files: Attachments | null = null
  /** Usage of tool calls that has not been written. */
  readonly #unwrittenUsage: UsageDraft[] = []
  #unusedAnswers = 0
  /** Whether the journal contains the model answer of the step in progress. */
  #isStepJournalled: boolean
  #isClaimed = false
  readonly #startedAt = performance.now()

  constructor(services: Services, loaded: LoadedTurn, context: TurnContext) {
    this.services = services
    this.loaded = loaded
    this.context = context
    // A turn without an agent is refused in prepareTurn.
    this.agent = loaded.agent as AgentRow
    this.#generation = loaded.generation
    const { open, settled } = readJournal(services, loaded.generation, loaded.journal, loaded.generation.step_count)
    this.#open = open
    this.#lastAnswer = open?.step ?? null
    this.#providerTypes = providerTypesOf(loaded)
    this.#isStepJournalled = open !== null
    this.#journalled = loaded.journal.length > 0
    this.#steps = loaded.steps.map(step => settled.get(step.n) ?? step)
    this.#route = loaded.route
    this.#frames = new FrameWriter(services, loaded.generation, loaded.lastFrame, context.signal)
  }

  get generation(): GenerationRow {
    return this.#generation
  }

  /** Whether this attempt has claimed the turn, and possibly lost it since. */
  get isClaimed(): boolean {
    return this.#isClaimed
  }

  /** Null until the turn is prepared. */
  get data(): TurnData | null {
    return this.#data
  }

  /** Settled steps with their content. */
  get steps(): readonly JournalStepRow[] {
    return this.#steps
  }

  /** Model route of an agent without a provider; read again with each step. */
  get route(): LoadedRoute | null {
    return this.#route
  }

  get frames(): FrameWriter {
    return this.#frames
  }

  /** Text streamed for the step in progress. */
  get partial(): string {
    return this.#partial
  }

  /** Reasoning of this attempt's steps, for a client that requests it. */
  get reasoning(): readonly string[] {
    return this.#reasoning
  }

  /** Probabilities of tokens by step; a streamed turn has them in the frames of its settled steps. Not stored otherwise. */
  get logprobs(): readonly StepLogprobs[] {
    return this.#logprobs
  }

  /** What the model gets for the files of the turn: read for the first model call; later steps use the same bytes. */
  get files(): Attachments | null {
    return this.#files
  }

  get tools(): Toolbox {
    return this.#tools
  }

  /** The step in progress, after its model call. */
  get open(): JournalState['open'] {
    return this.#open
  }

  /** Whether the journal may contain rows of the turn besides its settled steps. */
  get journalled(): boolean {
    return this.#journalled
  }

  /** The last model answer until its step settles. */
  get lastAnswer(): OpenStep | null {
    return this.#lastAnswer
  }

  /** Provider types of the providers that may have served a step, by id. */
  get providerTypes(): ProviderTypes {
    return this.#providerTypes
  }

  /** Keeps the data of the prepared turn. */
  prepared(data: TurnData | null): void {
    this.#data = data
  }

  /**
   * Claims the turn, unless this process is its holder. On a resume a frame voids the text of the interrupted step.
   * @throws TurnClaimLost
   */
  async claim(): Promise<void> {
    const { generation: before, services, context } = this
    if (context.isHolder) {
      this.#isClaimed = true
      return
    }
    const now = systemClock.now().toISOString()
    const first = before.status === 'pending'
    const after = this.#buildClaimedRow(now)
    this.#frames = new FrameWriter(services, after, this.loaded.lastFrame, context.signal)
    const frames = this.#buildFirstFrames(after, first)
    const claim = {
      generation: before,
      attempt: after.attempt,
      lostAttempts: after.lost_attempts,
      startedAt: after.started_at as string,
      agentVersion: after.agent_version as number,
      now,
      sealedData: first && context.source?.prepare && this.data ? sealTurnData(services, before, this.data) : null,
      hasHolder: this.loaded.holder !== null,
      continuation: first ? null : this.#continuation(now),
      frames,
    }
    // If the response to the claim is lost, the turn is requeued under it.
    this.#generation = after
    const { held } = await services.writeOne(outbox => {
      if (first) {
        outbox.emit(generationKind, 'started', after, withMemory([]))
        context.source?.started?.(outbox, after)
      }
      if (frames.length > 0) outbox.notify(TURN_CHANNEL, `${before.id} frames`)
      return claimParts(claim)
    })
    if (!held) throw new TurnClaimLost()
    this.#isClaimed = true
  }

  #buildClaimedRow(now: string): GenerationRow {
    const { generation: before, agent } = this
    const counted = before.status === 'pending' || before.handed_back
    return {
      ...before,
      status: 'in_progress',
      attempt: before.attempt + 1,
      lost_attempts: counted ? before.lost_attempts : before.lost_attempts + 1,
      handed_back: false,
      model_retry_at: null,
      started_at: before.started_at ?? now,
      agent_version: before.agent_version ?? agent.version,
      last_activity_at: before.last_activity_at ?? now,
      updated_at: now,
    }
  }

  #buildFirstFrames(claimed: GenerationRow, first: boolean): Frame[] {
    if (!claimed.streamed) return []
    if (first) return [this.frames.next('started', startedOf(claimed))]
    // A step with a model answer is not streamed again.
    if (this.open || this.loaded.lastFrame === 0) return []
    return [this.frames.next('step_restarted', { step: this.steps.length + 1 })]
  }

  /** Appends streamed text of the step in progress. The next write of the turn has the time of the first one. */
  appendText(text: string): void {
    if (this.#generation.first_text_at === null)
      this.#generation = { ...this.#generation, first_text_at: systemClock.now().toISOString() }
    this.#partial += text
    this.frames.text(text)
  }

  /** Sets the tools of the turn's model, and records them as the turn's surface unless an earlier attempt has. */
  setTools(tools: Toolbox): void {
    this.#tools = tools
    this.#generation = { ...this.#generation, tool_surface: this.#generation.tool_surface ?? tools.surface }
  }

  /** Holds what the model gets for the files of the turn, until the attempt ends. */
  holdFiles(files: Attachments): void {
    this.#files = files
  }

  /** Starts a model call of a step: what an earlier one streamed is no part of it. */
  startStep(): void {
    this.#partial = ''
  }

  /** Adds attempts at the targets of a route to the record, which the write of the step or of the end contains. */
  recordRouting(routing: GenerationRow['routing']): void {
    this.#generation = { ...this.#generation, routing }
  }

  /** Keeps a model answer with what a client gets of it, and returns its step. */
  addAnswer(answer: ModelAnswer, n: number, startedAt: string): OpenStep {
    if (answer.reasoning && this.showsReasoning) this.#reasoning.push(answer.reasoning)
    if (answer.logprobs) this.#logprobs.push({ step: n, tokens: answer.logprobs })
    if (this.#logprobs.length > MAX_LOGPROB_STEPS) this.#logprobs.shift()
    const step = openStepOf(answer, n, startedAt, this.#steps)
    this.#lastAnswer = step
    return step
  }

  /** Opens a step for its tool calls. */
  openStep(step: OpenStep): void {
    this.#open = { step, started: new Set(), outcomes: new Map() }
  }

  /** Whether the client gets reasoning: never of an agent that another project shares, which hides its instructions. */
  get showsReasoning(): boolean {
    return this.data?.overrides.client?.reasoning === true && this.generation.publisher_project_id === null
  }

  /** Returns the frames of unwritten text, of events and, with a step, of its end. */
  async buildFrames(events: readonly StreamEvent[], step?: JournalStepRow | null): Promise<Frame[]> {
    const frames = await this.frames.drain()
    if (!this.generation.streamed) return frames
    for (const { event, data } of events) frames.push(this.frames.next(event, data))
    if (!step) return frames
    if (this.generation.shape !== 'agent') return [...frames, this.frames.next(STEP_SETTLED, { step: step.n })]
    const { n, finish_reason, usage } = step
    const logprobs = this.logprobs.find(({ step }) => step === n)?.tokens
    // The result has the probabilities of other steps only.
    if (logprobs) this.#logprobs.length = 0
    const { annotations } = step
    const cited = annotations && annotations.length > 0 && { annotations }
    return [
      ...frames,
      this.frames.next('step', { step: n, finish_reason, usage, ...cited, ...(logprobs && { logprobs }) }),
    ]
  }

  /** The step in progress, once its first tool call has started. */
  get startedStep(): JournalState['open'] {
    return this.#isStepJournalled ? this.open : null
  }

  /** Journals starts and outcomes of tool calls; the first time with the model answer. @throws TurnClaimLost */
  async journalCalls(entries: Entry[], events: StreamEvent[]): Promise<void> {
    const { services, generation } = this
    const { step } = this.open as { step: OpenStep }
    const first = !this.#isStepJournalled
    const frames = await this.buildFrames(events)
    const answer: Entry[] = first ? [{ n: step.n, position: 0, value: step }] : []
    const rows = journalRows(services, generation, [...answer, ...entries])
    const calls = await this.priceCalls()
    const sent = first ? this.requests.unwritten() : null
    const after = { ...generation, journalled: generation.journalled + 1 }
    const answered = first ? { request: sent } : null
    const write = () => writeJournal(services.pool, generation, rows, frames, answered, calls.rated)
    if (!(await this.writeFenced(write, after))) throw new TurnClaimLost()
    if (frames.length > 0) notifyFrames(services, generation.id)
    calls.written()
    sent?.written()
    addUsageEffectsLater(services, calls.rated)
    this.#generation = after
    this.#isStepJournalled = true
    this.#journalled = true
  }

  /**
   * Makes a fenced write and retries it while the database is unavailable. A retry after a lost response counts as
   * written if the row has the state of `after`.
   * @param after the row as the write leaves it
   */
  async writeFenced<T>(write: () => Promise<T | false>, after: GenerationRow): Promise<T | true | false> {
    const { services, context } = this
    let unanswered = false
    return retryWhileUnavailable(
      async () => {
        try {
          return (await write()) || (unanswered && (await isWritten(services.pool, after)))
        } catch (error) {
          unanswered ||= isTransient(error)
          throw error
        }
      },
      { signal: context.signal },
    )
  }

  /** Journals a settled step, so that another worker could continue after it. @throws TurnClaimLost */
  async journalStep(step: JournalStepRow, events: StreamEvent[]): Promise<void> {
    const { services, generation } = this
    const frames = await this.buildFrames(events, step)
    const hidden = generation.content_mode === 'none'
    const sealed = hidden ? journalRows(services, generation, [{ n: step.n, position: 0, value: step }])[0] : null
    const calls = await this.priceCalls()
    const sent = this.requests.unwritten()
    const after = {
      ...generation,
      step_count: generation.step_count + 1,
      journalled: generation.journalled + 1,
      lost_attempts: 0,
      model_attempts: 0,
      last_activity_at: step.completed_at,
    }
    const write = () =>
      journalStep(
        services.pool,
        generation,
        storedStep(step, generation.content_mode),
        frames,
        this.agent,
        this.#isStepJournalled || sealed ? { settled: sealed } : null,
        calls.rated,
        sent,
      )
    const journalled = await this.writeFenced(write, after)
    if (!journalled) throw new TurnClaimLost()
    if (frames.length > 0) notifyFrames(services, generation.id)
    calls.written()
    sent?.written()
    addUsageEffectsLater(services, calls.rated)
    this.#journalled ||= hidden
    if (journalled !== true) this.#route = journalled.route
    if (this.route)
      this.#providerTypes = new Map([...this.providerTypes, ...providerTypesOf({ provider: null, route: this.route })])
    this.#lastAnswer = null
    this.#steps.push(step)
    this.#open = null
    this.#isStepJournalled = false
    this.#generation = after
  }

  /** Prices the unwritten usage of tool calls; `written` removes it after the write. */
  async priceCalls(): Promise<{ rated: PricedUsage[]; written: () => void }> {
    const count = this.#unwrittenUsage.length
    const rated = await retryWhileUnavailable(() => priceUsage(this.services, this.#unwrittenUsage), this.context)
    return { rated, written: () => void this.#unwrittenUsage.splice(0, count) }
  }

  /** Adds usage of a tool call, which the next write contains. */
  addUsage(draft: UsageDraft): void {
    this.#unwrittenUsage.push(draft)
  }

  /** Adds the usage of calls whose outcome is unknown when the turn ends. */
  addLostCalls(open: NonNullable<JournalState['open']>): void {
    const known = new Set(this.#unwrittenUsage.map(({ idempotency_key }) => idempotency_key))
    const lost = draftLostCalls(this.generation, open, this.tools.tools)
    this.#unwrittenUsage.push(...lost.filter(({ idempotency_key }) => !known.has(idempotency_key)))
  }

  /** Meters an answer of the model that a repeated or failed call did not return. */
  addUnusedAnswer(answer: UnusedAnswer, step: number): void {
    const type = this.providerTypes.get(answer.ai_provider_id) ?? 'unknown'
    this.#unwrittenUsage.push(draftUnusedAnswer(this.generation, answer, { type, step, n: this.#unusedAnswers++ }))
  }

  /** Keeps the record that a committed end or pause has written. */
  committed(after: GenerationRow): void {
    this.#generation = after
  }

  /** Ends the attempt: releases its memory and records usage that was not written with the turn. */
  async end(): Promise<void> {
    this.#files?.release()
    recordUsageLater(this.services, this.#unwrittenUsage.splice(0))
    await this.#frames.discard()
  }

  #continuation(at: string): Continuation {
    const { config } = this.services
    const { lostClaim = null } = this.context
    return { at, by: this.#instanceId, lostClaim, leaseSeconds: config.GENERATION_LEASE_SECONDS }
  }

  get #instanceId(): string {
    return instanceId(this.services.config, this.context.isHolder ? 'web' : 'worker')
  }

  #release(): Promise<boolean> {
    return releaseGeneration(this.services.pool, this.generation, this.#instanceId)
  }

  /** Requeues the turn for another worker, because this one stops. */
  async requeue(): Promise<'requeued'> {
    this.#logRequeue(await this.#release())
    return 'requeued'
  }

  /** Requeues the turn after a database error, without counting the attempt as lost. */
  requeueUncounted(): Promise<void> {
    const { services, generation, context } = this
    return this.#tryRequeue(retryWhileUnavailable(() => requeueGeneration(services.pool, generation), context))
  }

  /** Without the requeue, the next claim counts the attempt as lost. */
  async #tryRequeue(requeue: Promise<boolean>): Promise<void> {
    try {
      this.#logRequeue(await requeue)
    } catch (error) {
      this.#logOutcome('requeue_failed', null, {}, error)
    }
  }

  #logRequeue(held: boolean): void {
    this.#logOutcome(held ? 'requeued' : 'claim_lost')
  }

  /** Logs the end of an attempt whose turn waits for its model. */
  logWait(until: Date): void {
    this.#logOutcome('waiting', null, { retry_in_ms: until.getTime() - systemClock.now().getTime() })
  }

  /** Stops without settling: the claim was lost, or this process is stopping and requeues the turn. */
  async stopWithoutSettling(): Promise<'claim_lost' | 'requeued'> {
    // The claim may be lost as well.
    if (this.context.stopping.aborted && this.generation.status === 'in_progress') {
      await this.#tryRequeue(this.#release())
      return 'requeued'
    }
    this.#logOutcome('claim_lost')
    return 'claim_lost'
  }

  /** Counts and logs a written end or pause. */
  async reportOutcome(
    outcome: 'completed' | 'failed' | 'requires_action',
    error: RecordedFailure | null,
  ): Promise<'settled'> {
    await injectFault(this.services, 'after_settle')
    turnsTotal.inc({ outcome, ...projectLabels.of(this.#generation.project_id) })
    this.#logOutcome(outcome, error)
    return 'settled'
  }

  #logOutcome(outcome: string, failure: RecordedFailure | null = null, more: object = {}, error?: unknown): void {
    const { id, attempt, project_id, agent_id, conversation_id } = this.generation
    const ids = { generation_id: id, project_id, agent_id, conversation_id }
    const fields = { ...ids, attempt, steps: this.steps.length, outcome, code: failure?.code, ...more }
    logAttempt(this.context.log, turnQueue.name, this.#startedAt, fields, error)
  }
}
