import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { RerunAfter } from '../db/pool.ts'
import type { Logger } from '../process/log.ts'
import { processSingleton } from '../process/process-singleton.ts'
import { type SchemaOutcome, SchemaWorkerPool } from './check-worker-pool.ts'
import {
  MAX_SCHEMA_BYTES,
  noVerdictProblem,
  SchemaError,
  type SchemaProblem,
  type SchemaRules,
  timeoutProblem,
} from './model.ts'

export { SchemaError, type SchemaProblem, type SchemaRules } from './model.ts'

/** A schema of a project, as JSON. */
export type SchemaOf = {
  project: string
  text: string
  rules: SchemaRules
}

export type CheckOptions = {
  /** Takes what waits for a thread out of its queue; the reason is thrown. */
  signal?: AbortSignal
}

/** Larger values are refused: in the memory of a thread they would be ten to twenty times as much. */
const MAX_VALUE_LENGTH = 4 * 1024 * 1024
/** A schema whose values take longer is not run while a transaction waits. */
const QUICK_MS = 10

/**
 * Checks schemas and values in threads (threads.ts), so that nothing that a caller wrote compiles or runs on the event
 * loop. Schemas that were refused are remembered.
 */
export class SchemaChecks {
  readonly #threads: SchemaWorkerPool
  /** By schema: why it was refused, or what checking a value took lately, in ms of the processor. */
  readonly #schemas = new LRUCache<string, { refused: string } | { checkMs: number }>({ max: 5000 })
  /** Verdicts for transactions that are run again. */
  readonly #verdicts = new LRUCache<string, SchemaProblem[]>({ max: 5000, ttl: 60_000 })

  constructor(options: { threads: number; log: Logger }) {
    this.#threads = new SchemaWorkerPool(options)
  }

  /**
   * Refuses what is no usable schema.
   * @throws SchemaError, and SERVICE_NOT_READY when too much of the project waits or it has waited for too long
   */
  async check(schema: SchemaOf, options: CheckOptions = {}): Promise<void> {
    const key = keyOf(schema)
    if (!this.#known(schema, key)) await this.#run(schema, key, [], options)
  }

  /**
   * Where each of some values breaks a schema, at most 50 places; nothing where one satisfies it. A value for which there
   * is no verdict within 50 ms of processor time breaks it too.
   * @throws SchemaError and SERVICE_NOT_READY, as `check` does
   */
  async problems(schema: SchemaOf, values: readonly unknown[], options: CheckOptions = {}): Promise<SchemaProblem[][]> {
    const key = keyOf(schema)
    this.#known(schema, key)
    const texts = values.map(value => JSON.stringify(value))
    return this.#problems(schema, key, texts, options)
  }

  /**
   * `check` within a transaction, which holds a connection: what cannot be said at once is found out first, and the
   * transaction run again.
   * @throws SchemaError, RunFirst
   */
  async checkInTransaction(schema: SchemaOf): Promise<void> {
    if (!this.#known(schema, keyOf(schema))) throw new RerunAfter(() => this.check(schema).catch(expected))
  }

  /** `problems` of one value, in the same way. */
  async problemsInTransaction(schema: SchemaOf, value: unknown): Promise<SchemaProblem[]> {
    const key = keyOf(schema)
    const known = this.#known(schema, key)
    const text = JSON.stringify(value)
    const id = `${key} ${hash('sha256', text, 'base64')}`
    const verdict = this.#verdicts.get(id)
    if (verdict) return verdict
    const find = async () => (await this.#problems(schema, key, [text]))[0]
    if (known && known.checkMs <= QUICK_MS && this.#threads.isReady({ project: schema.project, key })) return find()
    throw new RerunAfter(async () => {
      try {
        this.#verdicts.set(id, await find())
      } catch (error) {
        expected(error)
      }
    })
  }

  close(): Promise<void> {
    return this.#threads.close()
  }

  /** What is known of a schema. @throws SchemaError for one that was refused, or is too large */
  #known({ text }: SchemaOf, key: string): { checkMs: number } | undefined {
    if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) throw new SchemaError('must be at most 64 KiB')
    const known = this.#schemas.get(key)
    if (known && 'refused' in known) throw new SchemaError(known.refused)
    return known
  }

  async #problems(
    schema: SchemaOf,
    key: string,
    values: readonly string[],
    options: CheckOptions = {},
  ): Promise<SchemaProblem[][]> {
    const found: SchemaProblem[][] = []
    while (found.length < values.length) {
      const next = values.slice(found.length)
      const tooLarge = next.findIndex(({ length }) => length > MAX_VALUE_LENGTH)
      if (tooLarge === 0)
        found.push([noVerdictProblem('size', `is larger than ${MAX_VALUE_LENGTH} characters of JSON`)])
      else found.push(...(await this.#run(schema, key, tooLarge > 0 ? next.slice(0, tooLarge) : next, options)))
    }
    return found
  }

  /** Verdicts on the first values, or on the schema where there is none. @throws SchemaError, SERVICE_NOT_READY */
  async #run(
    schema: SchemaOf,
    key: string,
    values: readonly string[],
    { signal }: CheckOptions,
  ): Promise<SchemaProblem[][]> {
    const outcome = await this.#threads.run({ ...schema, key, values }, signal)
    const refused = refusal(outcome, values)
    if (refused !== null) {
      this.#schemas.set(key, { refused })
      throw new SchemaError(refused)
    }
    if ('broke' in outcome)
      return [
        [outcome.broke === 'time' ? timeoutProblem() : noVerdictProblem('memory', 'takes too much memory to check')],
      ]
    const { problems, checkMs } = outcome as Extract<SchemaOutcome, { problems: unknown }>
    // One slow value counts for some time.
    const known = this.#schemas.get(key)
    const before = known && 'checkMs' in known ? known.checkMs : 0
    this.#schemas.set(key, { checkMs: Math.max(checkMs, before / 2) })
    return problems
  }
}

/** Why a schema is refused, by what became of a job; null when it is not. */
function refusal(outcome: SchemaOutcome, values: readonly string[]): string | null {
  if ('refused' in outcome) return outcome.refused
  if (!('broke' in outcome) || values.length > 0) return null
  return outcome.broke === 'time' ? 'takes too long to compile' : 'takes too much memory to compile'
}

const keyOf = ({ project, text, rules }: SchemaOf): string =>
  `${project} ${rules.strict} ${hash('sha256', text, 'base64')}`

/** The transaction that is run again meets the refusal where it belongs. */
function expected(error: unknown): void {
  if (!(error instanceof SchemaError)) throw error
}

/** The checks of a process. */
export const schemaChecks = processSingleton(
  ({ config, log }) => new SchemaChecks({ threads: config.SCHEMA_THREADS, log }),
  checks => checks.close(),
)
