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

/** A schema of a project as JSON. */
export type SchemaOf = {
  project: string
  text: string
  rules: SchemaRules
}

export type CheckOptions = {
  /** Removes a waiting check from its queue and rejects with the reason. */
  signal?: AbortSignal
}

/** Longest value as JSON; in the memory of a thread it takes ten to twenty times as much. */
const MAX_VALUE_LENGTH = 4 * 1024 * 1024
/** Highest check time of a schema that may run while a transaction waits. */
const QUICK_MS = 10

/**
 * Checks schemas and values in worker threads (check-worker-pool.ts), so that no schema of a caller compiles or runs on
 * the event loop. Refused schemas are cached.
 */
export class SchemaChecks {
  readonly #threads: SchemaWorkerPool
  /** By schema: the reason for which it was refused, or the recent processor time of a check in ms. */
  readonly #schemas = new LRUCache<string, { refused: string } | { checkMs: number }>({ max: 5000 })
  /** Results for repeated transactions. */
  readonly #results = new LRUCache<string, SchemaProblem[]>({ max: 5000, ttl: 60_000 })

  constructor(options: { threads: number; log: Logger }) {
    this.#threads = new SchemaWorkerPool(options)
  }

  /**
   * Checks that a schema can be used.
   * @throws SchemaError, or SERVICE_NOT_READY if too many checks of the project are waiting or this one waited too long
   */
  async check(schema: SchemaOf, options: CheckOptions = {}): Promise<void> {
    const key = keyOf(schema)
    if (!this.#findAccepted(schema, key)) await this.#run(schema, key, [], options)
  }

  /**
   * Returns the violations of each value, at most 50, empty for a valid one. A value whose check takes longer than 50
   * ms of processor time is a violation too.
   * @throws SchemaError, SERVICE_NOT_READY like `check`
   */
  async problems(schema: SchemaOf, values: readonly unknown[], options: CheckOptions = {}): Promise<SchemaProblem[][]> {
    const key = keyOf(schema)
    this.#findAccepted(schema, key)
    const texts = values.map(value => JSON.stringify(value))
    return this.#problems(schema, key, texts, options)
  }

  /**
   * Checks a schema within a transaction. A result that is not cached is computed outside of it, without holding the
   * connection, and the transaction is repeated.
   * @throws SchemaError, RerunAfter
   */
  async checkInTransaction(schema: SchemaOf): Promise<void> {
    if (!this.#findAccepted(schema, keyOf(schema)))
      throw new RerunAfter(() => this.check(schema).catch(ignoreSchemaError))
  }

  /** Returns the violations of one value within a transaction, in the same way. */
  async problemsInTransaction(schema: SchemaOf, value: unknown): Promise<SchemaProblem[]> {
    const key = keyOf(schema)
    const cached = this.#findAccepted(schema, key)
    const text = JSON.stringify(value)
    const id = `${key} ${hash('sha256', text, 'base64')}`
    const result = this.#results.get(id)
    if (result) return result
    const check = async () => (await this.#problems(schema, key, [text]))[0]
    if (cached && cached.checkMs <= QUICK_MS && this.#threads.isReady({ project: schema.project, key })) return check()
    throw new RerunAfter(async () => {
      try {
        this.#results.set(id, await check())
      } catch (error) {
        ignoreSchemaError(error)
      }
    })
  }

  close(): Promise<void> {
    return this.#threads.close()
  }

  /** Returns the cache entry of an accepted schema. @throws SchemaError for a refused or too large schema */
  #findAccepted({ text }: SchemaOf, key: string): { checkMs: number } | undefined {
    if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) throw new SchemaError('must be at most 64 KiB')
    const cached = this.#schemas.get(key)
    if (cached && 'refused' in cached) throw new SchemaError(cached.refused)
    return cached
  }

  async #problems(
    schema: SchemaOf,
    key: string,
    values: readonly string[],
    options: CheckOptions = {},
  ): Promise<SchemaProblem[][]> {
    const results: SchemaProblem[][] = []
    while (results.length < values.length) {
      const rest = values.slice(results.length)
      const tooLarge = rest.findIndex(({ length }) => length > MAX_VALUE_LENGTH)
      if (tooLarge === 0)
        results.push([noVerdictProblem('size', `is larger than ${MAX_VALUE_LENGTH} characters of JSON`)])
      else results.push(...(await this.#run(schema, key, tooLarge > 0 ? rest.slice(0, tooLarge) : rest, options)))
    }
    return results
  }

  /** Checks the first values, or only the schema without any values. @throws SchemaError, SERVICE_NOT_READY */
  async #run(
    schema: SchemaOf,
    key: string,
    values: readonly string[],
    { signal }: CheckOptions,
  ): Promise<SchemaProblem[][]> {
    const outcome = await this.#threads.run({ ...schema, key, values }, signal)
    const refused = refusalReason(outcome, values)
    if (refused !== null) {
      this.#schemas.set(key, { refused })
      throw new SchemaError(refused)
    }
    if ('broke' in outcome)
      return [
        [outcome.broke === 'time' ? timeoutProblem() : noVerdictProblem('memory', 'takes too much memory to check')],
      ]
    const { problems, checkMs } = outcome as Extract<SchemaOutcome, { problems: unknown }>
    // Halved with each faster check, so that one slow value counts for some time.
    const cached = this.#schemas.get(key)
    const previousMs = cached && 'checkMs' in cached ? cached.checkMs : 0
    this.#schemas.set(key, { checkMs: Math.max(checkMs, previousMs / 2) })
    return problems
  }
}

/** Returns the reason for which the outcome of a job refuses the schema, null if it does not. */
function refusalReason(outcome: SchemaOutcome, values: readonly string[]): string | null {
  if ('refused' in outcome) return outcome.refused
  if (!('broke' in outcome) || values.length > 0) return null
  return outcome.broke === 'time' ? 'takes too long to compile' : 'takes too much memory to compile'
}

const keyOf = ({ project, text, rules }: SchemaOf): string =>
  `${project} ${rules.strict} ${hash('sha256', text, 'base64')}`

/** Ignores a refusal, which the repeated transaction reports. */
function ignoreSchemaError(error: unknown): void {
  if (!(error instanceof SchemaError)) throw error
}

/** Schema checks of a process. */
export const schemaChecks = processSingleton(
  ({ config, log }) => new SchemaChecks({ threads: config.SCHEMA_THREADS, log }),
  checks => checks.close(),
)
