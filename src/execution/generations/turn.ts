import { Counter } from 'prom-client'
import { SlonikError } from 'slonik'
import { AppError, type RecordedFailure, raise } from '../../core/api/errors.ts'
import { isDatabaseLost } from '../../core/db/sql.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import type { AgentRow } from '../agents/model.ts'
import { callRoute, openRouting } from '../model-routes/call.ts'
import type { LoadedRoute } from '../model-routes/store.ts'
import { callModel } from '../providers/call.ts'
import type { ModelAnswer, ModelRequest } from '../providers/exchange.ts'
import {
  claimParts,
  handBackTurn,
  journalStep,
  type LoadedTurn,
  loadTurn,
  settlementParts,
  settleTurn,
} from './attempt-store.ts'
import { followEnd } from './ended.ts'
import { type Attachments, attachFiles, readFiles } from './files.ts'
import { addFrame } from './frame-store.ts'
import { FrameWriter, startedOf } from './frames.ts'
import { liveTurns, TURN_CHANNEL, TurnAborted, TurnLost } from './live.ts'
import { type GenerationRow, generationKind, type StepRow, storable, sumUsage, type Work } from './model.ts'
import { readObject } from './output.ts'
import { prepareTurn } from './prepare.ts'
import { agentResult, stepMessages } from './result.ts'
import type { TurnOutcome, TurnRun } from './source.ts'
import { historyOf, stepOf, storedStep } from './steps.ts'
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
  return new Execution(services, loaded, run).carryOut()
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

  constructor(services: Services, loaded: LoadedTurn, run: TurnRun) {
    this.services = services
    this.loaded = loaded
    this.run = run
    this.agent = loaded.agent
    this.generation = loaded.generation
    this.steps = loaded.steps
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
      agent_version: before.agent_version ?? loaded.agent.version,
      last_activity_at: before.last_activity_at ?? now,
      updated_at: now,
    }
    this.frames = new FrameWriter(services, after, loaded.lastFrame)
    const frames = []
    if (after.streamed && first) frames.push(this.frames.next('started', startedOf(after)))
    if (after.streamed && !first && loaded.lastFrame > 0)
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

  /** Step after step until an answer, a limit or an abort. */
  private async loop(controller: AbortController): Promise<'settled' | 'lost' | 'handed_back'> {
    const { agent, services, run } = this
    const maxSteps = Math.min(agent.max_steps ?? DEFAULT_MAX_STEPS, services.config.AGENT_MAX_STEPS_CEILING)
    const limits = this.limit(controller)
    try {
      for (;;) {
        controller.signal.throwIfAborted()
        if (run.stopping.aborted && this.steps.length > this.loaded.steps.length) return await this.handBack()
        const startedAt = new Date().toISOString()
        await fault(services, 'before_model')
        this.partial = ''
        const answer = await this.callModel(controller.signal)
        await fault(services, 'after_model')
        controller.signal.throwIfAborted()
        const step = stepOf(answer, this.steps.length + 1, startedAt)
        if (answer.tool_calls.length === 0) return await this.complete(answer, step, controller.signal)
        if (step.n >= maxSteps) return await this.complete(answer, step, controller.signal, 'max_steps')
        await this.journal(step)
      }
    } finally {
      limits()
    }
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

  private async callModel(signal: AbortSignal): Promise<ModelAnswer> {
    const { agent, work, generation, services } = this
    const system = [agent.instructions ?? '', ...(work as Work).system_extra]
      .map(part => part.trim())
      .filter(part => part !== '')
    const history = historyOf((work as Work).messages ?? [], agent.max_context_messages)
    this.files ??= await readFiles(services, generation.project_id, history, signal)
    const request: ModelRequest = {
      system: system.length > 0 ? system.join('\n\n') : null,
      messages: attachFiles([...history, ...this.steps.flatMap(stepMessages)], this.files),
      temperature: agent.temperature,
      tools: [],
      tool_choice: null,
      output_schema: agent.output_schema,
      prompt_caching: agent.prompt_caching?.enabled ?? false,
      max_output_tokens: agent.max_output_tokens,
      top_p: agent.top_p,
      seed: agent.seed,
      provider_options: agent.provider_options,
      signal,
      ...(generation.streamed ? { onDelta: (text: string) => this.receive(text) } : {}),
    }
    const { provider } = this.loaded
    if (provider)
      return callModel(services, provider, (work as Work).model ?? agent.model ?? provider.default_model, request)
    // Of an agent that has changed since, what its version names may be gone.
    if (!this.route) raise(agent.ai_provider_id === null ? 'MODEL_ROUTE_NOT_FOUND' : 'AI_PROVIDER_NOT_FOUND')
    // Noted while the call is made, and written with its step or with the failure of the turn.
    const routing = openRouting(this.route, generation.routing)
    this.generation = { ...generation, routing }
    return callRoute(services, this.route, request, { step: this.steps.length + 1, routing })
  }

  private receive(text: string) {
    this.partial += text
    this.frames.text(text)
  }

  /** Keeps a settled step, so that another worker could go on from it. Raises TurnLost. */
  private async journal(step: StepRow): Promise<void> {
    const frames = await this.frames.drain()
    if (this.generation.streamed && this.generation.shape === 'agent')
      frames.push(this.frames.next('step', { step: step.n, finish_reason: step.finish_reason, usage: step.usage }))
    const journalled = await journalStep(
      this.services.pool,
      this.generation,
      storedStep(step, this.generation.content_mode),
      frames,
      TURN_CHANNEL,
      this.agent,
    )
    if (!journalled) throw new TurnLost()
    this.route = journalled.route
    this.steps.push(step)
    this.generation = {
      ...this.generation,
      step_count: this.generation.step_count + 1,
      lost_attempts: 0,
      last_activity_at: step.completed_at,
    }
  }

  private async complete(
    answer: ModelAnswer,
    step: StepRow,
    signal: AbortSignal,
    stop?: 'max_steps',
  ): Promise<'settled'> {
    const { agent } = this
    let object: unknown = null
    if (agent.output_schema) {
      const read = stop
        ? {
            ok: false as const,
            problems: [{ code: 'NO_ANSWER', path: '', message: 'the turn ended at max_steps without an answer' }],
          }
        : await readObject(this.services, agent.project_id, { text: answer.text, schema: agent.output_schema, signal })
      if (!read.ok) {
        const failure = {
          code: 'OUTPUT_SCHEMA_VALIDATION_FAILED',
          message: 'The answer does not satisfy the output schema',
          meta: { problems: read.problems, finish_reason: answer.finish_reason },
        }
        return this.settle({ status: 'failed', stop_reason: 'error', error: failure, output: null }, step)
      }
      object = read.object
    }
    const output = { model: answer.model, content: answer.text, finish_reason: answer.finish_reason, object }
    return this.settle({ status: 'completed', stop_reason: stop ?? answer.finish_reason, error: null, output }, step)
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
    step: StepRow | null,
  ): Promise<'settled'> {
    const { services, run } = this
    await fault(services, 'before_settle')
    const frames = await this.frames.drain()
    if (step && this.generation.streamed && this.generation.shape === 'agent')
      frames.push(this.frames.next('step', { step: step.n, finish_reason: step.finish_reason, usage: step.usage }))
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
