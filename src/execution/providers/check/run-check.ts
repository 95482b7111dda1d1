import { randomUUID } from 'node:crypto'
import { checkSpend } from '#control/quotas/spend.ts'
import { answerUsage, recordUsageLater, type UsageDraft, type UsedAnswer } from '#control/usage/meter.ts'
import { priceUsage, totalCost } from '#control/usage/price-usage.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { attemptModel, IMMEDIATE_RETRIES, ModelCallError, requireModelAnswer } from '../call.ts'
import { listModels } from '../listing.ts'
import type { CheckLine, Dialect, Matrix, ProviderProfile, ProviderRow } from '../model.ts'
import { modelInputs } from '../model-inputs.ts'
import type { ModelAnswer, ModelRequest, VendorNote } from '../model-messages.ts'
import { modelClient } from '../models.ts'
import { cacheMarks } from '../outgoing/cache-marks.ts'
import { REFUSED_NOTE } from '../outgoing/refused-settings.ts'
import { freshFindings, type ModelFindings } from '../profile.ts'
import { saveCheck } from '../store.ts'
import { proposedDialect } from './dialect.ts'
import { type Probe, probes, type Subject, usageVerdict, type Verdict } from './probes.ts'

/** Longest check; below the default timeout of HTTP clients, five minutes. */
const MAX_CHECK_MS = 240_000
const CALL_MS = 60_000
/** Probes at a time: servers of local models answer one call after the other. */
const CONCURRENT = 3
const MAX_NOTE = 1000
/** Failures that every other call would repeat. */
const HOPELESS = new Set<unknown>(['auth', 'credit', 'not_found'])

/** Meters the usage of a call of a check like any other call. */
export function recordCheckUsage(services: Services, provider: ProviderRow, model: string, answer: UsedAnswer): void {
  recordUsageLater(services, [draftOf(provider, model, answer)])
}

const draftOf = (provider: ProviderRow, model: string, answer: UsedAnswer): UsageDraft => ({
  idempotency_key: `completion:check:${randomUUID()}`,
  project_id: provider.project_id,
  meter_type: 'llm_tokens',
  provider: provider.provider,
  model,
  ai_provider_id: provider.id,
  source: null,
  ...answerUsage(answer),
})

/** Returns what a check will cost; `cost_usd` is null without a price. */
export async function estimateCheck(services: Services, provider: ProviderRow, model: string, isMatrix: boolean) {
  const asked = isMatrix ? probes : probes.slice(0, 1)
  const sum = (name: 'calls' | 'input_tokens' | 'output_tokens') => asked.reduce((total, each) => total + each[name], 0)
  const [calls, input_tokens, output_tokens] = [sum('calls'), sum('input_tokens'), sum('output_tokens')]
  const largest_prompt_tokens = Math.max(...asked.map(each => each.input_tokens / Math.max(1, each.calls)))
  const usage = {
    input_tokens,
    output_tokens,
    cached_tokens: 0,
    cache_write_tokens: 0,
    reasoning_tokens: 0,
    details: { largest_prompt_tokens },
  }
  const cost_usd = totalCost(await priceUsage(services, [draftOf(provider, model, { usage })]))
  return { model, calls, input_tokens, output_tokens, cost_usd }
}

/**
 * Tries each capability of a model with a few calls of the provider's credential, and stores the results with the provider.
 * No connection of the database is held while the vendor answers.
 * @throws the reason of `closed`; QUOTA_EXCEEDED, QUOTA_UNENFORCEABLE, PROJECT_PAUSED before the first call
 */
export async function runMatrix(
  services: Services,
  provider: ProviderRow,
  model: string,
  closed: AbortSignal,
): Promise<Matrix & { failure: RecordedFailure | null }> {
  const check = new MatrixCheck(services, provider, model, closed)
  await check.requireSpend()
  const [plain, ...others] = probes
  const first = await check.lineOf(plain)
  const lines = [first]
  const queue = [...others.entries()]
  const work = async () => {
    for (let next = queue.shift(); next; next = queue.shift()) lines[next[0] + 1] = await check.lineOf(next[1])
  }
  await Promise.all(Array.from({ length: CONCURRENT }, work))
  lines.push({ capability: 'usage', ...check.usageLine(), vendor_message: null })
  const proposed_dialect = await check.dialect()
  const at = services.clock.now().toISOString()
  const matrix: Matrix = { model, checked_at: at, checks: lines, proposed_dialect }
  // The caller has paid for the result, whether or not it can be stored.
  await saveCheck(services.pool, provider, { model, findings: check.findings(at), at }, matrix).catch(error =>
    services.log.error({ err: error, ai_provider_id: provider.id }, 'provider check write failed'),
  )
  return { ...matrix, failure: check.failureOf(plain.capability) }
}

class MatrixCheck {
  readonly #services: Services
  readonly #provider: ProviderRow
  readonly #model: string
  readonly #closed: AbortSignal
  readonly #signal: AbortSignal
  readonly #usage = new Map<boolean, boolean>()
  readonly #found: ModelFindings[] = []
  readonly #failures = new Map<string, AppError>()

  constructor(services: Services, provider: ProviderRow, model: string, closed: AbortSignal) {
    this.#services = services
    this.#provider = provider
    this.#model = model
    this.#closed = closed
    const ms = Math.min(MAX_CHECK_MS, services.config.SYNC_WAIT_SECONDS * 1000)
    this.#signal = AbortSignal.any([closed, AbortSignal.timeout(ms)])
  }

  requireSpend(): Promise<void> {
    return checkSpend(this.#services, { project_id: this.#provider.project_id, agent_id: null, actor_id: null })
  }

  failureOf(capability: string): RecordedFailure | null {
    return this.#failures.get(capability)?.recorded() ?? null
  }

  /** Runs a probe. A failure is a line, too; only an abort by the caller is thrown. */
  async lineOf({ capability, run }: Probe): Promise<CheckLine> {
    const line = (verdict: Verdict, vendor_message: string | null = null): CheckLine => ({
      capability,
      result: verdict.result,
      note: verdict.note && truncateChars(verdict.note, MAX_NOTE),
      vendor_message,
    })
    if (this.#isHopeless()) return line({ result: 'refused', note: 'not called: the plain call was refused' })
    const findings = freshFindings()
    this.#found.push(findings)
    const seen: Seen = { notes: [], refusal: null }
    try {
      const verdict = await run(await this.#subject(findings, seen))
      const noted = withNotes(verdict, seen.notes)
      return line(noted, noted.result === 'works' ? null : seen.refusal)
    } catch (error) {
      this.#closed.throwIfAborted()
      if (this.#signal.aborted) return line({ result: 'refused', note: 'not answered within the time of the check' })
      if (!(error instanceof AppError)) throw error
      this.#failures.set(capability, error)
      const isUnsupported = error instanceof ModelCallError && error.failure.unsupported === true
      if (isUnsupported || error.code === 'MODEL_LISTING_UNSUPPORTED')
        return line({ result: 'not_offered', note: error.message })
      const isVendors = typeof error.meta?.provider_status_code === 'number'
      return isVendors
        ? line({ result: 'refused', note: null }, error.message)
        : line({ result: 'refused', note: `${error.code}: ${error.message}` })
    }
  }

  usageLine(): Verdict {
    if (this.#usage.size === 0) return { result: 'refused', note: 'no call was answered' }
    return usageVerdict({ usage: this.#usage })
  }

  async dialect(): Promise<Dialect | null> {
    try {
      return await proposedDialect(this.#services, this.#provider, this.#signal)
    } catch (error) {
      this.#closed.throwIfAborted()
      if (this.#signal.aborted || error instanceof AppError) return null
      throw error
    }
  }

  /** Returns what this check found, in place of earlier findings about the model. */
  findings(at: string): ProviderProfile[string] {
    const refused = this.#found.flatMap(each => [...each.refused()])
    const { thinks } = this.#provider.profile[this.#model] ?? {}
    return {
      ...(thinks && { thinks }),
      ...Object.fromEntries(refused.map(name => [name, { by: 'check' as const, at }])),
    }
  }

  #isHopeless(): boolean {
    const failure = this.#failures.get('plain')
    return failure !== undefined && (!(failure instanceof ModelCallError) || HOPELESS.has(failure.failure.class))
  }

  async #subject(findings: ModelFindings, seen: Seen): Promise<Subject> {
    const client = await modelClient(this.#services, this.#provider)
    const marks = cacheMarks(client.type, this.#model, { prompt_caching: null, tools: [{} as never] })
    return {
      ask: fields => this.#ask(fields, findings, seen),
      hasRefused: setting => findings.has(setting),
      inputs: modelInputs(this.#provider, this.#model),
      marksCache: marks !== null,
      sendsSchemas: client.structuredOutputs,
      model: this.#model,
      listModels: () => listModels(this.#services, this.#provider, this.#signal),
      usage: this.#usage,
    }
  }

  async #ask(fields: Partial<ModelRequest>, findings: ModelFindings, seen: Seen): Promise<ModelAnswer> {
    await this.requireSpend()
    const record = (answer: UsedAnswer) => recordCheckUsage(this.#services, this.#provider, this.#model, answer)
    const request: ModelRequest = {
      system: null,
      messages: [],
      temperature: null,
      tools: [],
      tool_choice: null,
      output_schema: null,
      prompt_caching: false,
      max_output_tokens: 4096,
      reasoning: 'none',
      timeout_ms: Math.min(CALL_MS, this.#services.config.MODEL_CALL_TIMEOUT_MS),
      signal: this.#signal,
      onUnused: record,
      ...fields,
    }
    const outcome = await attemptModel(this.#services, this.#provider, this.#model, request, {
      retries: IMMEDIATE_RETRIES,
      repeats: failed => failed !== 'timeout',
      findings,
      each: async attempt => {
        if (!attempt.ok && attempt.failure.meta.provider_status_code !== null) seen.refusal = attempt.failure.message
      },
    })
    const answer = requireModelAnswer(outcome)
    record(answer)
    const isStreamed = request.stream !== false && !findings.has('stream')
    this.#usage.set(isStreamed, (this.#usage.get(isStreamed) ?? true) && answer.usage !== null)
    seen.notes.push(...(answer.notes ?? []).filter(note => !isOwnSetting(note, fields)))
    return answer
  }
}

const REASONING = new Set(['reasoning_effort', 'reasoning_none', 'reasoning_low'])

/** Whether a note is on a setting that all calls have to limit their cost, and that the probe did not set. */
const isOwnSetting = (note: VendorNote, { reasoning }: Partial<ModelRequest>): boolean =>
  'setting' in note &&
  (note.setting === 'max_output_tokens' || (reasoning === undefined && REASONING.has(note.setting)))

/** Notes of the answers of a probe, and the last refusal that led to another attempt. */
type Seen = { notes: VendorNote[]; refusal: string | null }

/**
 * Returns a verdict with notes: a setting that the package or vendor leaves out by itself is ignored, what this service changed
 * for the vendor is degraded.
 */
function withNotes(verdict: Verdict, notes: readonly VendorNote[]): Verdict {
  if (verdict.result !== 'works' || notes.length === 0) return verdict
  const texts = [...new Set(notes.map(noteText))]
  const isIgnored = notes.every(note => note.kind === 'warning' || ('setting' in note && note.message !== REFUSED_NOTE))
  return { result: isIgnored ? 'ignored' : 'degraded', note: texts.join('; ') }
}

function noteText(note: VendorNote): string {
  if ('tool_name' in note) return `${note.kind} ${note.tool_name}: ${note.message}`
  if ('setting' in note) return `${note.kind} ${note.setting}: ${note.message}`
  return `${note.kind}: ${note.message}`
}
