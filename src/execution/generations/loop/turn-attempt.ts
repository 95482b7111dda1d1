import { Counter } from 'prom-client'
import { checkThresholdsLater, recordUsageLater, type UsageDraft } from '../../../control/usage/meter.ts'
import { type PricedUsage, priceUsage } from '../../../control/usage/price-usage.ts'
import type { RecordedFailure } from '../../../core/api/errors.ts'
import { isTransient } from '../../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../../core/db/retry.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import type { Services } from '../../../core/process/services.ts'
import type { AgentRow } from '../../agents/model.ts'
import type { LoadedRoute } from '../../model-routes/store.ts'
import { type Entry, type JournalState, journalRows, readJournal, writeJournal } from '../journal/store.ts'
import { type GenerationRow, generationKind, type JournalStepRow, type OpenStep, type TurnData } from '../model.ts'
import type { Attachments } from '../request/message-files.ts'
import type { Frame } from '../streams/frame-store.ts'
import { FrameWriter, startedOf } from '../streams/frames.ts'
import { notifyFrames, TURN_CHANNEL, TurnClaimLost } from '../streams/live-turns.ts'
import type { StreamEvent } from '../tools/tool-calls.ts'
import { NO_TOOLS, type Toolbox } from '../tools/toolbox.ts'
import { storedStep } from './history.ts'
import { lostCalls, type Slugs, slugsOf } from './metering.ts'
import { sealTurnData } from './turn-data.ts'
import { withMemory } from './turn-hooks.ts'
import type { TurnRun } from './turn-owner.ts'
import { claimParts, isWritten, journalStep, type LoadedTurn, requeueGeneration } from './turn-store.ts'

export const turnsTotal = new Counter({
  name: 'muster_turns_total',
  help: 'Agent turns by outcome',
  labelNames: ['outcome'],
  registers: [],
})

/** One attempt at a turn: how far it has come, and what is written of it while it goes on. */
export class TurnAttempt {
  readonly services: Services
  readonly run: TurnRun
  readonly loaded: LoadedTurn
  readonly agent: AgentRow
  generation: GenerationRow
  /** Null until the turn is prepared. */
  work: TurnData | null = null
  /** Settled steps, with their content. */
  readonly steps: JournalStepRow[]
  /** Of an agent without a provider; read anew with each step. */
  route: LoadedRoute | null
  frames: FrameWriter
  /** Text of the step under way, as far as the model has said it. */
  partial = ''
  /** Read at the first model call; later steps see the same bytes. */
  files: Attachments | null = null
  tools: Toolbox = NO_TOOLS
  /** The step under way, once the model has answered. */
  open: JournalState['open']
  /** Something of the turn may be in the journal beside its settled steps. */
  journalled: boolean
  /** What the model answered last, until it is a settled step. */
  answered: OpenStep | null
  /** Calls of tools that were made and whose usage is yet to be written. */
  readonly calls: UsageDraft[] = []
  /** Types of the providers that may have served a step. */
  slugs: Slugs
  /** The journal has the answer of the step under way. */
  private noted: boolean
  private readonly startedAt = performance.now()

  constructor(services: Services, loaded: LoadedTurn, run: TurnRun) {
    this.services = services
    this.loaded = loaded
    this.run = run
    // A turn without one is refused before anything asks for it.
    this.agent = loaded.agent as AgentRow
    this.generation = loaded.generation
    const { open, settled } = readJournal(services, loaded.generation, loaded.journal, loaded.generation.step_count)
    this.open = open
    this.answered = open?.step ?? null
    this.slugs = slugsOf(loaded)
    this.noted = open !== null
    this.journalled = loaded.journal.length > 0
    this.steps = loaded.steps.map(step => settled.get(step.n) ?? step)
    this.route = loaded.route
    this.frames = new FrameWriter(services, loaded.generation, loaded.lastFrame, run.signal)
  }

  /** Takes the turn. On a resume, a frame says that the interrupted step's text is void. Raises TurnLost. */
  async claim(): Promise<void> {
    const { generation: before, services, run } = this
    const now = new Date().toISOString()
    const first = before.status === 'pending'
    const after = this.claimed(now)
    this.frames = new FrameWriter(services, after, this.loaded.lastFrame, run.signal)
    const frames = this.firstFrames(after, first)
    const claim = {
      generation: before,
      attempt: after.attempt,
      lostAttempts: after.lost_attempts,
      startedAt: after.started_at as string,
      agentVersion: after.agent_version as number,
      now,
      sealedWork: first && run.source?.prepare && this.work ? sealTurnData(services, before, this.work) : null,
      frames,
    }
    // Where the answer to the claim is lost, the turn is given back under it.
    this.generation = after
    const { held } = await services.writeOne(outgoing => {
      if (first) {
        outgoing.emit(generationKind, 'started', after, withMemory([]))
        run.source?.started?.(outgoing, after)
      }
      if (frames.length > 0) outgoing.notify(TURN_CHANNEL, `${before.id} frames`)
      return claimParts(claim)
    })
    if (!held) throw new TurnClaimLost()
  }

  private claimed(now: string): GenerationRow {
    const { generation: before, agent } = this
    const counted = before.status === 'pending' || before.handed_back
    return {
      ...before,
      status: 'in_progress',
      attempt: before.attempt + 1,
      lost_attempts: counted ? before.lost_attempts : before.lost_attempts + 1,
      handed_back: false,
      started_at: before.started_at ?? now,
      agent_version: before.agent_version ?? agent.version,
      last_activity_at: before.last_activity_at ?? now,
      updated_at: now,
    }
  }

  private firstFrames(claimed: GenerationRow, first: boolean): Frame[] {
    if (!claimed.streamed) return []
    if (first) return [this.frames.next('started', startedOf(claimed))]
    // Of a step that the model has answered nothing is said again.
    if (this.open || this.loaded.lastFrame === 0) return []
    return [this.frames.next('step_restarted', { step: this.steps.length + 1 })]
  }

  /** Takes a piece of what the model says. */
  receive(text: string): void {
    this.partial += text
    this.frames.text(text)
  }

  /** Frames of what is to be told, behind the text that is not written yet; with a step, that it has settled. */
  async framesOf(told: readonly StreamEvent[], step?: JournalStepRow | null): Promise<Frame[]> {
    const frames = await this.frames.drain()
    if (!this.generation.streamed) return frames
    for (const { event, data } of told) frames.push(this.frames.next(event, data))
    if (!step || this.generation.shape !== 'agent') return frames
    const { n, finish_reason, usage } = step
    return [...frames, this.frames.next('step', { step: n, finish_reason, usage })]
  }

  /** The step under way, once the first of its calls has begun. */
  get begun(): JournalState['open'] {
    return this.noted ? this.open : null
  }

  /** Keeps what is known of the calls of the step under way; the first time, with what the model answered. Raises TurnLost. */
  async note(entries: Entry[], told: StreamEvent[]): Promise<void> {
    const { services, generation } = this
    const { step } = this.open as { step: OpenStep }
    const first = !this.noted
    const frames = await this.framesOf(told)
    const answer: Entry[] = first ? [{ n: step.n, position: 0, value: step }] : []
    const rows = journalRows(services, generation, [...answer, ...entries])
    const calls = await this.rateCalls()
    const after = { ...generation, journalled: generation.journalled + 1 }
    const write = () => writeJournal(services.pool, generation, rows, frames, first, calls.rated)
    if (!(await this.persist(write, after))) throw new TurnClaimLost()
    if (frames.length > 0) notifyFrames(services, generation.id)
    calls.written()
    checkThresholdsLater(services, calls.rated)
    this.generation = after
    this.noted = true
    this.journalled = true
  }

  /**
   * Makes a write that the attempt fences, again while the database is unavailable. Where a further try finds the row changed
   * by one whose answer was lost, it is as if that had been answered.
   * @param after the row as the write leaves it
   */
  async persist<T>(write: () => Promise<T | false>, after: GenerationRow): Promise<T | true | false> {
    const { services, run } = this
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
      { signal: run.signal },
    )
  }

  /** Keeps a settled step, so that another worker could go on from it. Raises TurnLost. */
  async journal(step: JournalStepRow, told: StreamEvent[]): Promise<void> {
    const { services, generation } = this
    const frames = await this.framesOf(told, step)
    const hidden = generation.content_mode === 'none'
    const kept = hidden ? journalRows(services, generation, [{ n: step.n, position: 0, value: step }])[0] : null
    const calls = await this.rateCalls()
    const after = {
      ...generation,
      step_count: generation.step_count + 1,
      journalled: generation.journalled + 1,
      lost_attempts: 0,
      last_activity_at: step.completed_at,
    }
    const write = () =>
      journalStep(
        services.pool,
        generation,
        storedStep(step, generation.content_mode),
        frames,
        this.agent,
        this.noted || kept ? { kept } : null,
        calls.rated,
      )
    const journalled = await this.persist(write, after)
    if (!journalled) throw new TurnClaimLost()
    if (frames.length > 0) notifyFrames(services, generation.id)
    calls.written()
    checkThresholdsLater(services, calls.rated)
    this.journalled ||= hidden
    if (journalled !== true) this.route = journalled.route
    if (this.route) this.slugs = new Map([...this.slugs, ...slugsOf({ provider: null, route: this.route })])
    this.answered = null
    this.steps.push(step)
    this.open = null
    this.noted = false
    this.generation = after
  }

  /** Prices the calls of tools whose usage is yet to be written; `written` once it is. */
  async rateCalls(): Promise<{ rated: PricedUsage[]; written: () => void }> {
    const count = this.calls.length
    const rated = await retryWhileUnavailable(() => priceUsage(this.services, this.calls), this.run)
    return { rated, written: () => void this.calls.splice(0, count) }
  }

  /** Takes up the use of calls whose outcome is not known when the turn ends. */
  leaveUnknown(open: NonNullable<JournalState['open']>): void {
    const known = new Set(this.calls.map(({ idempotency_key }) => idempotency_key))
    const lost = lostCalls(this.generation, open, this.tools.tools)
    this.calls.push(...lost.filter(({ idempotency_key }) => !known.has(idempotency_key)))
  }

  /** Records usage that no write of the turn has taken along. */
  leaveCalls(): void {
    recordUsageLater(this.services, this.calls.splice(0))
  }

  /** Gives the turn back, for another worker to go on with. */
  async handBack(): Promise<'handed_back'> {
    await requeueGeneration(this.services.pool, this.generation)
    this.report('handed_back')
    return 'handed_back'
  }

  /** Gives the turn back, uncounted, after an error of the database. */
  async release(): Promise<void> {
    const { services, generation, run } = this
    await retryWhileUnavailable(() => requeueGeneration(services.pool, generation), run).catch(() => {})
    this.report('handed_back')
  }

  /** Leaves a turn that another process owns, or gives it back when this one is stopping. */
  async leave(): Promise<'lost' | 'handed_back'> {
    // The worker that stops hard gives its turns back; one that lost its lease no longer owns them, and this finds no row.
    if (this.run.stopping.aborted && this.generation.status === 'in_progress') {
      await requeueGeneration(this.services.pool, this.generation).catch(() => {})
      this.report('handed_back')
      return 'handed_back'
    }
    this.report('lost')
    return 'lost'
  }

  /** Counts and reports an end, or a pause, that is written. */
  async ended(outcome: 'completed' | 'failed' | 'requires_action', error: RecordedFailure | null): Promise<'settled'> {
    await injectFault(this.services, 'after_settle')
    turnsTotal.inc({ outcome })
    this.report(outcome, error)
    return 'settled'
  }

  private report(outcome: string, error: RecordedFailure | null = null): void {
    const { id, attempt, project_id, agent_id, conversation_id } = this.generation
    this.run.log.info(
      {
        generation_id: id,
        project_id,
        agent_id,
        conversation_id,
        attempt,
        steps: this.steps.length,
        outcome,
        code: error?.code,
        ms: Math.round(performance.now() - this.startedAt),
      },
      'turn',
    )
  }
}
