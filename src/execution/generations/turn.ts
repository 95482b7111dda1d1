import { Counter } from 'prom-client'
import { SlonikError } from 'slonik'
import type { ActivityKind } from '../../control/activity/model.ts'
import { recordActivity } from '../../control/activity/record.ts'
import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import { isDatabaseLost } from '../../core/db/sql.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Origin } from '../../core/invoke/call.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import type { AgentRow } from '../agents/model.ts'
import type { LoadedRoute } from '../model-routes/store.ts'
import type { ModelAnswer } from '../providers/exchange.ts'
import { activeTools, askModel, offeredTools } from './ask.ts'
import {
  claimParts,
  handBackTurn,
  journalStep,
  type LoadedTurn,
  loadTurn,
  pauseParts,
  pauseTurn,
  settlementParts,
  settleTurn,
} from './attempt-store.ts'
import { actingCaller } from './authority.ts'
import { makeCalls, openStepOf, type Released, settledStep, type Told } from './calls.ts'
import { followEnd, followPause } from './ended.ts'
import { type Attachments, attachFiles, readFiles } from './files.ts'
import { addFrame, type Frame } from './frame-store.ts'
import { FrameWriter, startedOf } from './frames.ts'
import { type Entry, journalRows, type OpenWork, readJournal, writeJournal } from './journal-store.ts'
import { liveTurns, TURN_CHANNEL, TurnAborted, TurnLost } from './live.ts'
import {
  type GenerationRow,
  generationKind,
  type OpenStep,
  type StepRow,
  storable,
  sumUsage,
  type Work,
} from './model.ts'
import { readObject } from './output.ts'
import { prepareTurn } from './prepare.ts'
import { agentResult, requiredAction, stepMessages } from './result.ts'
import { outputSchemaOf, reachable, settingsOf, stoppingTools } from './settings.ts'
import { ownedTurn, type TurnOutcome, type TurnRun } from './source.ts'
import { historyOf, storedStep } from './steps.ts'
import { textEncodedCall } from './text-call.ts'
import { NO_TOOLS, openToolbox, type Toolbox, type TurnTool, unavailableNote } from './toolbox.ts'
import { traceWriter } from './trace-write.ts'
import { sealWork } from './work.ts'

export const turnsTotal = new Counter({
  name: 'muster_turns_total',
  help: 'Agent turns by outcome',
  labelNames: ['outcome'],
  registers: [],
})

const LOST_ATTEMPTS_MAX = 3
const DEFAULT_MAX_STEPS = 20
const DEPTH_GUARD_TEXT = 'The largest depth of nested calls is reached; this agent was not asked.'

/**
 * Claims a generation (attempt + 1) and runs it to its end. Returns `settled` when it is at its
 * end, `lost` when another process owns it, `handed_back` when the process is stopping and the turn goes on elsewhere,
 * `waiting` when its project is paused and it has not started.
 */
export async function executeTurn(
  services: Services,
  generationId: string,
  run: TurnRun,
): Promise<'settled' | 'lost' | 'handed_back' | 'waiting'> {
  const loaded = await loadTurn(services.pool, generationId)
  if (!loaded) return 'settled'
  const { status } = loaded.generation
  if (status !== 'pending' && status !== 'in_progress') return 'settled'
  if (status === 'pending' && loaded.paused) return 'waiting'
  const source = run.source ?? ownedTurn(loaded.generation)
  return new Execution(services, loaded, { ...run, source }).carryOut()
}

/** What is recorded of a failure. Texts of the database are for the log alone. */
function recorded(error: unknown): RecordedFailure {
  if (error instanceof AppError) return error.recorded()
  const message =
    error instanceof SlonikError ? 'The turn could not be written' : String((error as Error)?.message ?? error)
  return { code: 'GENERATION_FAILED', message }
}

/** One attempt at a turn. */
class Execution {
  private readonly services: Services
  private readonly run: TurnRun
  private readonly loaded: LoadedTurn
  private readonly agent: AgentRow
  private readonly startedAt = performance.now()
  private generation: GenerationRow
  private work: Work | null = null
  private steps: StepRow[]
  /** Of an agent without a provider; read anew with each step. */
  private route: LoadedRoute | null
  private frames: FrameWriter
  private partial = ''
  /** Read at the first model call; later steps see the same bytes. */
  private files: Attachments | null = null
  private tools: Toolbox = NO_TOOLS
  /** The step under way, as far as the journal has it. */
  private open: OpenWork['open']
  /** The journal has the answer of the step under way. */
  private noted: boolean
  /** The journal may hold something beside the settled steps. */
  private journalled: boolean

  constructor(services: Services, loaded: LoadedTurn, run: TurnRun) {
    this.services = services
    this.loaded = loaded
    this.run = run
    // A turn without one is refused before anything asks for it.
    this.agent = loaded.agent as AgentRow
    this.generation = loaded.generation
    const { open, settled } = readJournal(services, loaded.generation, loaded.journal, loaded.generation.step_count)
    this.open = open
    this.noted = open !== null
    this.journalled = loaded.journal.length > 0
    this.steps = loaded.steps.map(step => settled.get(step.n) ?? step)
    this.route = loaded.route
    this.frames = new FrameWriter(services, loaded.generation, loaded.lastFrame)
  }

  async carryOut(): Promise<'settled' | 'lost' | 'handed_back'> {
    const controller = new AbortController()
    const leave = () => controller.abort(new TurnLost())
    this.run.signal.addEventListener('abort', leave, { once: true })
    let ended: (() => void) | null = null
    try {
      const { work, refusal } = await prepareTurn(this.services, this.loaded, this.run.source)
      this.work = work
      // Refused before it started: no claim, so that a crash here leaves nothing behind.
      if (refusal) return await this.fail(refusal)
      await this.claim()
      ended = liveTurns(this.services).run(this.generation.id, this.generation.attempt, controller)
      if (this.run.signal.aborted) throw new TurnLost()
      if (this.generation.lost_attempts >= LOST_ATTEMPTS_MAX) {
        return await this.fail({
          code: 'GENERATION_FAILED',
          message: 'The worker of the turn was lost three times without progress',
          meta: { reason: 'executor_lost' },
        })
      }
      if (this.generation.abort) throw new TurnAborted(this.generation.abort)
      await fault(this.services, 'after_claim')
      if (this.work?.depth === 0) return await this.guardDepth()
      return await this.loop(controller)
    } catch (error) {
      const reason = controller.signal.aborted ? controller.signal.reason : error
      if (reason instanceof TurnLost) return this.left()
      if (reason instanceof TurnAborted) return this.failOrLeave(reason.failure, reason.failure.stop_reason)
      // As when the worker had been lost: the next try of the message goes on behind what is settled.
      if (isDatabaseLost(reason)) throw reason
      return this.failOrLeave(recorded(reason))
    } finally {
      this.run.signal.removeEventListener('abort', leave)
      ended?.()
      this.files?.release()
      await this.frames.discard()
    }
  }

  /** Takes the turn. On a resume, a frame says that the interrupted step's text is void. Raises TurnLost. */
  private async claim(): Promise<void> {
    const { generation: before, services, run, loaded } = this
    const now = new Date().toISOString()
    const first = before.status === 'pending'
    const lost = first || before.handed_back ? before.lost_attempts : before.lost_attempts + 1
    const after: GenerationRow = {
      ...before,
      status: 'in_progress',
      attempt: before.attempt + 1,
      lost_attempts: lost,
      handed_back: false,
      started_at: before.started_at ?? now,
      agent_version: before.agent_version ?? this.agent.version,
      last_activity_at: before.last_activity_at ?? now,
      updated_at: now,
    }
    this.frames = new FrameWriter(services, after, loaded.lastFrame)
    const frames = []
    if (after.streamed && first) frames.push(this.frames.next('started', startedOf(after)))
    // Of a step that the model has answered nothing is said again.
    if (after.streamed && !first && loaded.lastFrame > 0 && !this.open)
      frames.push(this.frames.next('step_restarted', { step: this.steps.length + 1 }))
    const claim = {
      generation: before,
      attempt: after.attempt,
      lostAttempts: after.lost_attempts,
      startedAt: after.started_at as string,
      agentVersion: after.agent_version as number,
      now,
      sealedWork: first && run.source?.prepare && this.work ? sealWork(services, before, this.work) : null,
      frames,
    }
    const { held } = await services.writeOne(outgoing => {
      if (first) {
        outgoing.emit(generationKind, 'started', after)
        run.source?.started?.(outgoing, after)
      }
      if (frames.length > 0) outgoing.notify(TURN_CHANNEL, `${before.id} frames`)
      return claimParts(claim)
    })
    if (!held) throw new TurnLost()
    this.generation = after
  }

  /** Step after step until an answer, a limit, a pause or an abort. */
  private async loop(controller: AbortController): Promise<'settled' | 'lost' | 'handed_back'> {
    const { agent, services, run } = this
    const { signal } = controller
    const work = this.work as Work
    const maxSteps = Math.min(agent.max_steps ?? DEFAULT_MAX_STEPS, services.config.AGENT_MAX_STEPS_CEILING)
    const stopping = stoppingTools(agent, work)
    const limits = this.limit(controller)
    try {
      this.tools = await this.openTools(signal)
      for (;;) {
        signal.throwIfAborted()
        if (run.stopping.aborted && this.steps.length > this.loaded.steps.length) return await this.handBack()
        const n = this.steps.length + 1
        const settings = settingsOf(agent, work, n)
        const tools = activeTools(this.tools, settings)
        if (!this.open) {
          const startedAt = new Date().toISOString()
          await fault(services, 'before_model')
          this.partial = ''
          const answer = await this.ask(n, offeredTools(tools, settings), signal)
          await fault(services, 'after_model')
          signal.throwIfAborted()
          const step = openStepOf(answer, n, startedAt, this.steps)
          if (answer.tool_calls.length === 0)
            return await this.complete(answer.text, settledStep(step, new Map()), signal)
          this.open = { step, started: new Set(), outcomes: new Map() }
        }
        const { step, started, outcomes } = this.open
        const { pending, called, told } = await makeCalls({
          services,
          generation: this.generation,
          work,
          step,
          started,
          outcomes,
          tools,
          gate: this.gate,
          turn: this.calling,
          caller: () => this.caller(),
          signal,
          aside: run.aside,
          bounded: agent.boundary_policy !== null,
          write: (entries, more) => this.note(entries, more),
          executed: tool => this.noteExecuted(tool),
        })
        if (pending.length > 0) return await this.pause(pending, told)
        const settled = settledStep(step, outcomes)
        const stop = [...called].some(name => stopping.has(name)) ? 'tool-calls' : n >= maxSteps ? 'max_steps' : null
        if (stop) return await this.complete(step.text ?? '', settled, signal, { stop, told })
        await this.journal(settled, told)
      }
    } finally {
      limits()
    }
  }

  /** What the model of the turn can call, asked for once an attempt. */
  private async openTools(signal: AbortSignal): Promise<Toolbox> {
    const { agent, loaded, services } = this
    if (!agent.tool_bindings?.length) return NO_TOOLS
    const work = this.work as Work
    const tools = await openToolbox(services, {
      agent,
      project_id: this.generation.project_id,
      tools: loaded.tools,
      reachable: reachable(agent, work, this.steps.length + 1),
      gate: this.gate,
      context: work.tool_context ?? {},
      signal,
    })
    this.generation = { ...this.generation, tool_surface: this.generation.tool_surface ?? tools.surface }
    // Once a turn, not with each worker that goes on with it.
    if (this.generation.attempt === 1)
      for (const { tool_name, ...about } of tools.unavailable)
        this.noteActivity('tool_resolution_failed', `${tool_name} is not available`, { tool_name, ...about })
    return tools
  }

  private noteExecuted({ callable: { id, name }, action }: TurnTool): void {
    this.noteActivity('action_executed', `${name} was called`, { tool_id: id, tool_name: name, action: action ?? name })
  }

  private noteActivity(
    kind: ActivityKind,
    summary: string,
    detail: { tool_id: string | null; [name: string]: unknown },
  ) {
    const { project_id, agent_id, id: generation_id } = this.generation
    recordActivity(this.services, {
      project_id,
      kind,
      summary,
      detail,
      agent_id,
      generation_id,
      ref_id: detail.tool_id,
    })
  }

  /** The agent as rules know it. */
  private get gate() {
    const { id, guardrail_ids, project_id } = this.agent
    // Those of another project, which shares the agent, do not apply.
    return { id, guardrail_ids: project_id === this.generation.project_id ? guardrail_ids : null }
  }

  /** The turn as what its calls start knows it. */
  private get calling(): Origin {
    const { generation, loaded, work } = this
    const { depth, occupied } = work as Work
    const { id: generation_id, trace_id, conversation_id } = generation
    return {
      generation_id,
      trace_id,
      root_trace_id: loaded.rootTrace ?? trace_id,
      depth,
      conversations: conversation_id === null ? occupied : [...occupied, conversation_id],
    }
  }

  /** Whom the turn runs as, within what its agent may do. */
  private caller(): Promise<Caller | null> {
    return actingCaller(this.services, this.generation, this.agent)
  }

  /** Ends the attempt when its segment or the turn's own deadline is over. */
  private limit(controller: AbortController): () => void {
    const { generation, services } = this
    const segment = services.config.GENERATION_MAX_SECONDS * 1000
    const own = generation.deadline_at
      ? new Date(generation.deadline_at).getTime() - Date.now()
      : Number.POSITIVE_INFINITY
    const over = new TurnAborted({
      code: 'GENERATION_FAILED',
      message: 'The turn took too long',
      meta: { reason: 'deadline' },
      // A caller's own deadline ends the turn as its cancel would.
      stop_reason: own < segment ? 'cancelled' : 'error',
    })
    const timer = setTimeout(() => controller.abort(over), Math.max(0, Math.min(segment, own, 2 ** 31 - 1)))
    return () => clearTimeout(timer)
  }

  private async ask(step: number, offered: ReturnType<typeof offeredTools>, signal: AbortSignal): Promise<ModelAnswer> {
    const { agent, generation, services, loaded, route } = this
    const work = this.work as Work
    const history = historyOf(work.messages ?? [], agent.max_context_messages)
    this.files ??= await readFiles(services, generation.project_id, history, signal)
    const asked = askModel(services, {
      generation,
      agent,
      work,
      provider: loaded.provider,
      route,
      step,
      messages: attachFiles([...history, ...this.steps.flatMap(stepMessages)], this.files),
      note: unavailableNote(this.tools.unavailable),
      offered,
      signal,
      ...(generation.streamed ? { onDelta: (text: string) => this.receive(text) } : {}),
    })
    this.generation = asked.generation
    return asked.answer
  }

  private receive(text: string) {
    this.partial += text
    this.frames.text(text)
  }

  /** Frames of what is to be told, behind the text that is not written yet; with a step, that it has settled. */
  private async framesOf(told: readonly Told[], step?: StepRow | null): Promise<Frame[]> {
    const frames = await this.frames.drain()
    if (!this.generation.streamed) return frames
    for (const { event, data } of told) frames.push(this.frames.next(event, data))
    if (!step || this.generation.shape !== 'agent') return frames
    const { n, finish_reason, usage } = step
    return [...frames, this.frames.next('step', { step: n, finish_reason, usage })]
  }

  /** Keeps what is known of the calls of the step under way; the first time, with what the model answered. Raises TurnLost. */
  private async note(entries: Entry[], told: Told[]): Promise<void> {
    const { services, generation } = this
    const { step } = this.open as { step: OpenStep }
    const first = !this.noted
    const all = await this.framesOf(told)
    const rows = journalRows(services, generation, [
      ...(first ? [{ n: step.n, position: 0, value: step }] : []),
      ...entries,
    ])
    if (!(await writeJournal(services.pool, generation, rows, all, TURN_CHANNEL, first))) throw new TurnLost()
    this.noted = true
    this.journalled = true
  }

  /** Keeps a settled step, so that another worker could go on from it. Raises TurnLost. */
  private async journal(step: StepRow, told: Told[]): Promise<void> {
    const { services, generation } = this
    const all = await this.framesOf(told, step)
    const hidden = generation.content_mode === 'none'
    const kept = hidden ? journalRows(services, generation, [{ n: step.n, position: 0, value: step }])[0] : null
    const journalled = await journalStep(
      services.pool,
      generation,
      storedStep(step, generation.content_mode),
      all,
      TURN_CHANNEL,
      this.agent,
      this.noted || kept ? { kept } : null,
    )
    if (!journalled) throw new TurnLost()
    this.journalled ||= hidden
    this.route = journalled.route
    this.steps.push(step)
    this.open = null
    this.noted = false
    this.generation = {
      ...this.generation,
      step_count: this.generation.step_count + 1,
      lost_attempts: 0,
      last_activity_at: step.completed_at,
    }
  }

  /** Leaves the turn to its client, who makes the calls that are pending. Raises TurnLost. */
  private async pause(pending: readonly Released[], told: Told[]): Promise<'settled'> {
    const { services, run } = this
    const { step, outcomes } = this.open as NonNullable<OpenWork['open']>
    await fault(services, 'before_settle')
    const all = await this.framesOf(told)
    const settled = [...outcomes].map(([position, value]): Entry => ({ n: step.n, position: position + 1, value }))
    const entries = journalRows(services, this.generation, [{ n: step.n, position: 0, value: step }, ...settled])
    const now = new Date().toISOString()
    const required_action = requiredAction(step, pending)
    const shown: GenerationRow = {
      ...this.generation,
      status: 'requires_action',
      required_action,
      usage: sumUsage([...this.steps, step]),
      last_activity_at: now,
      updated_at: now,
    }
    const after = shown.content_mode === 'none' ? { ...shown, required_action: null } : shown
    const last = (result: object | null) =>
      this.frames.next('requires_action', result ?? agentResult(shown, this.steps, step))
    let owned: boolean
    if (run.source?.pause) {
      const { source } = run
      const firstSeq = this.frames.seq
      owned = await services.write(async tx => {
        this.frames.seq = firstSeq
        const stop = await source.lock?.(tx, this.generation)
        if (stop) throw new TurnAborted({ stop_reason: 'error', ...stop })
        if (!(await pauseTurn(tx, this.generation, after, entries, all))) return false
        followPause(tx, after)
        const given = await source.pause?.(tx, after, { required_action, text: step.text, model: step.model })
        addFrame(tx, after.id, last(given?.result ?? null))
        return true
      })
    } else {
      const { held } = await services.writeOne(outgoing => {
        followPause(outgoing, after)
        run.complete?.(outgoing)
        return pauseParts(this.generation, after, entries, [...all, last(null)])
      })
      owned = held
    }
    if (!owned) throw new TurnLost()
    this.generation = after
    await fault(services, 'after_settle')
    turnsTotal.inc({ outcome: 'requires_action' })
    this.report('requires_action', null)
    return 'settled'
  }

  private async complete(
    text: string,
    step: StepRow,
    signal: AbortSignal,
    { stop, told }: { stop?: 'max_steps' | 'tool-calls'; told?: Told[] } = {},
  ): Promise<'settled'> {
    const { agent } = this
    const finish_reason = step.finish_reason as string
    const failed = (code: string, message: string, meta: Record<string, unknown>) =>
      this.settle({ status: 'failed', stop_reason: 'error', error: { code, message, meta }, output: null }, step, told)
    let object: unknown = null
    const schema = outputSchemaOf(agent, this.work as Work)
    if (schema && stop !== 'tool-calls') {
      const read = stop
        ? {
            ok: false as const,
            problems: [{ code: 'NO_ANSWER', path: '', message: 'the turn ended at max_steps without an answer' }],
          }
        : await readObject(this.services, agent.project_id, { text, schema, signal })
      if (!read.ok)
        return failed('OUTPUT_SCHEMA_VALIDATION_FAILED', 'The answer does not satisfy the output schema', {
          problems: read.problems,
          finish_reason,
        })
      object = read.object
    } else if (!stop) {
      const tool_name = textEncodedCall(text, new Set(this.tools.tools.keys()))
      if (tool_name !== null)
        return failed('TEXT_ENCODED_TOOL_CALL', `The model wrote a call of ${tool_name} as text`, { tool_name })
    }
    const output = { model: step.model as string, content: text, finish_reason, object }
    return this.settle({ status: 'completed', stop_reason: stop ?? finish_reason, error: null, output }, step, told)
  }

  /** The end of a chain of nested calls: a completed turn without a model call. */
  private guardDepth(): Promise<'settled'> {
    const { agent, loaded, work } = this
    const first = loaded.provider?.default_model ?? loaded.route?.route.targets[0].model
    const model = (work as Work).model ?? agent.model ?? first ?? ''
    const output = { model, content: DEPTH_GUARD_TEXT, finish_reason: 'other', object: null }
    return this.settle({ status: 'completed', stop_reason: 'depth_guard', error: null, output }, null)
  }

  private async fail(failure: RecordedFailure, stop_reason = 'error'): Promise<'settled'> {
    return this.settle({ status: 'failed', stop_reason, error: failure, output: null }, null)
  }

  /** Records a failure; when even that finds the turn owned by another process, leaves. */
  private async failOrLeave(
    failure: RecordedFailure,
    stop_reason = 'error',
  ): Promise<'settled' | 'lost' | 'handed_back'> {
    const { code, message, meta } = failure
    try {
      return await this.fail({ code, message, ...(meta ? { meta } : {}) }, stop_reason)
    } catch (error) {
      if (error instanceof TurnLost) return this.left()
      throw error
    }
  }

  /** Ends the turn: record, journal, working state, frames and events in one transaction guarded by the attempt. Raises TurnLost. */
  private async settle(
    end: Pick<GenerationRow, 'status' | 'stop_reason' | 'error' | 'output'>,
    given: StepRow | null,
    told: Told[] = [],
  ): Promise<'settled'> {
    const { services, run } = this
    await fault(services, 'before_settle')
    // What was done of the step under way stays, so that a retry does not do it again.
    const step = given ?? this.cutOff()
    const frames = await this.framesOf(told, step)
    const steps = step ? [...this.steps, step] : this.steps
    const now = new Date().toISOString()
    const shown: GenerationRow = {
      ...this.generation,
      ...end,
      input: this.work?.messages ?? null,
      usage: sumUsage(steps),
      step_count: steps.length,
      completed_at: now,
      last_activity_at: now,
      updated_at: now,
    }
    const after = storable(shown, now)
    const last = (result: object | null) =>
      end.status === 'completed'
        ? this.frames.next('completed', result ?? agentResult(shown, steps))
        : this.frames.next('error', shown.error as object)
    const settlement = {
      generation: this.generation,
      after,
      step: step ? storedStep(step, this.generation.content_mode) : null,
      journalled: this.journalled,
    }
    let owned: boolean
    if (run.source?.settle) {
      const { source } = run
      const firstSeq = this.frames.seq
      owned = await services.write(async tx => {
        this.frames.seq = firstSeq
        const stop = await source.lock?.(tx, this.generation)
        if (stop && end.status === 'completed') throw new TurnAborted({ stop_reason: 'error', ...stop })
        if (!(await settleTurn(tx, { ...settlement, frames }))) return false
        followEnd(tx, after)
        const outcome: TurnOutcome = {
          status: end.status as 'completed' | 'failed',
          content: end.output?.content ?? null,
          partial: this.partial === '' ? null : this.partial.toWellFormed(),
          model: end.output?.model ?? null,
          object: end.output?.object ?? null,
          error: end.error,
          notes: this.work?.notes ?? {},
        }
        const given = await source.settle?.(tx, after, outcome)
        addFrame(tx, after.id, last(given?.result ?? null))
        return true
      })
    } else {
      const { held } = await services.writeOne(outgoing => {
        followEnd(outgoing, after)
        run.complete?.(outgoing)
        return settlementParts({ ...settlement, frames: [...frames, last(null)] })
      })
      owned = held
    }
    if (!owned) throw new TurnLost()
    this.generation = after
    if (after.step_count > 0) traceWriter(services).add(after)
    await fault(services, 'after_settle')
    turnsTotal.inc({ outcome: end.status })
    this.report(end.status === 'completed' ? 'completed' : 'failed', end.error)
    return 'settled'
  }

  /** The step under way as it is when the turn ends in the middle of it; null when none of its calls was started. */
  private cutOff(): StepRow | null {
    if (!this.open || !this.noted) return null
    const { step, started, outcomes } = this.open
    return settledStep(step, outcomes, started)
  }

  private async handBack(): Promise<'handed_back'> {
    await handBackTurn(this.services.pool, this.generation)
    this.report('handed_back', null)
    return 'handed_back'
  }

  private async left(): Promise<'lost' | 'handed_back'> {
    // The worker that stops hard gives its turns back; one that lost its lease no longer owns them, and this finds no row.
    if (this.run.stopping.aborted && this.generation.status === 'in_progress') {
      await handBackTurn(this.services.pool, this.generation).catch(() => {})
      this.report('handed_back', null)
      return 'handed_back'
    }
    this.report('lost', null)
    return 'lost'
  }

  private report(outcome: string, error: RecordedFailure | null) {
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
