import { Ajv, type AnySchema, type Options, type ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { LRUCache } from 'lru-cache'
import { CpuStarved, CpuTimeExceeded, runWithCpuLimit } from './cpu-limit.ts'
import {
  CHECK_MS,
  MAX_SCHEMA_BYTES,
  noVerdictProblem,
  SchemaError,
  type SchemaProblem,
  type SchemaRules,
  timeoutProblem,
} from './model.ts'
import { compilePattern } from './patterns.ts'

/**
 * JSON Schemas of callers, draft 2020-12 or draft-07, compiled and run: for the threads of threads.ts alone. What a
 * schema may cost is bounded when it is compiled and each time a value is checked, and nothing outside of it is read.
 */

const MAX_PROBLEMS = 50
/** Processor time to compile one schema; 64 KiB of ordinary properties take a quarter of a second. */
const COMPILE_MS = 500
const FORMATS = ['date', 'date-time', 'email', 'uri', 'uuid'] as const

type Draft = '07' | '2020-12'

const META_SCHEMAS: Record<Draft, string> = {
  '07': 'http://json-schema.org/draft-07/schema',
  '2020-12': 'https://json-schema.org/draft/2020-12/schema',
}

const DRAFTS: Record<string, Draft> = {
  [META_SCHEMAS['07']]: '07',
  'https://json-schema.org/draft-07/schema': '07',
  [META_SCHEMAS['2020-12']]: '2020-12',
}

const options: Options = {
  strict: false,
  allErrors: true,
  logger: false,
  // `required: ["toString"]` is about the value's own properties.
  ownProperties: true,
  // The size of what is generated stays in proportion to the schema.
  inlineRefs: false,
}

/** Checks schemas themselves; made at the first use, outside of any time limit, because it takes tens of milliseconds. */
const metaSchemas = new Map<Draft, ValidateFunction>()

function metaSchema(draft: Draft): ValidateFunction {
  const known = metaSchemas.get(draft)
  if (known) return known
  const ajv = draft === '07' ? new Ajv(options) : new Ajv2020(options)
  const made = ajv.getSchema(META_SCHEMAS[draft]) as ValidateFunction
  metaSchemas.set(draft, made)
  return made
}

/** A schema's function, with the memory it takes in bytes, roughly. */
type Made = { validate: ValidateFunction; weight: number }

type Compiled = Made & {
  project: string
  /** It was never run: V8 compiles its code at the first run, which takes up to 200 ms. */
  fresh: boolean
}

/** Generated code takes 15 times the size of its schema; measured. */
const CODE_WEIGHT = 16
/** Most memory for what is kept compiled. */
const MAX_WEIGHT = 64 * 1024 * 1024

/** Schemas that are kept compiled. When they are full, the project that takes most space loses its least recently used one. */
export class CompiledSchemas {
  /** Used least lately first. */
  readonly #kept = new Map<string, Compiled>()
  readonly #weights = new Map<string, number>()
  /** Schemas that took too long with some value: they get no second chance at a first run. */
  readonly #slow = new LRUCache<string, true>({ max: 1000 })

  /**
   * Refuses what is no usable schema.
   * @param text the schema as JSON
   * @throws SchemaError
   */
  check(project: string, text: string, rules: SchemaRules): void {
    this.#compiled(project, text, rules)
  }

  /**
   * Where a value breaks a schema, at most 50 places; nothing when it satisfies it. A value that takes longer than 50 ms
   * to check, or that the schema follows without end, breaks it.
   * @param text the schema as JSON
   * @throws SchemaError
   */
  problems(project: string, text: string, value: unknown, rules: SchemaRules): SchemaProblem[] {
    const compiled = this.#compiled(project, text, rules)
    const { validate } = compiled
    try {
      if (run(compiled, value)) return []
    } catch (error) {
      // What was interrupted may be left half-way.
      const key = keyOf(project, text, rules)
      this.#drop(key)
      if (error instanceof CpuTimeExceeded) {
        this.#slow.set(key, true)
        return [timeoutProblem()]
      }
      if (error instanceof RangeError)
        return [noVerdictProblem('recursion', 'leads the schema into itself without end')]
      throw error
    }
    const errors = validate.errors ?? []
    validate.errors = null
    return errors.slice(0, MAX_PROBLEMS).map(({ keyword, instancePath, message, params }) => {
      const property = params.additionalProperty ?? params.unevaluatedProperty
      const text = message ?? 'is not valid'
      return {
        keyword,
        pointer: instancePath,
        message: property === undefined ? text : `${text}: '${property}'`,
        ...(keyword === 'required' ? { missing: params.missingProperty } : {}),
      }
    })
  }

  #compiled(project: string, text: string, rules: SchemaRules): Compiled {
    const key = keyOf(project, text, rules)
    const compiled = this.#kept.get(key) ?? {
      ...compileText(text, rules),
      project,
      fresh: !this.#slow.has(key),
    }
    this.#drop(key)
    this.#kept.set(key, compiled)
    this.#weights.set(project, (this.#weights.get(project) ?? 0) + compiled.weight)
    this.#makeRoom(key)
    return compiled
  }

  #drop(key: string): void {
    const dropped = this.#kept.get(key)
    if (!dropped) return
    this.#kept.delete(key)
    const left = (this.#weights.get(dropped.project) as number) - dropped.weight
    if (left > 0) this.#weights.set(dropped.project, left)
    else this.#weights.delete(dropped.project)
  }

  #makeRoom(needed: string): void {
    for (;;) {
      const weights = [...this.#weights]
      if (weights.reduce((sum, [, weight]) => sum + weight, 0) <= MAX_WEIGHT) return
      const [fullest] = weights.reduce((most, each) => (each[1] > most[1] ? each : most))
      const oldest = [...this.#kept].find(([key, { project }]) => project === fullest && key !== needed)
      if (!oldest) return
      this.#drop(oldest[0])
    }
  }
}

const keyOf = (project: string, text: string, { strict }: SchemaRules): string => `${project} ${strict} ${text}`

/** Throws OutOfTime, Starved, RangeError. */
function run(compiled: Compiled, value: unknown): boolean {
  const check = () => runWithCpuLimit(CHECK_MS, () => compiled.validate(value) as boolean)
  const { fresh } = compiled
  compiled.fresh = false
  try {
    return check()
  } catch (error) {
    if (!fresh || !(error instanceof CpuTimeExceeded)) throw error
    return check()
  }
}

function compileText(text: string, rules: SchemaRules): Made {
  if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) throw new SchemaError('must be at most 64 KiB')
  const schema: unknown = JSON.parse(text)
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema))
    throw new SchemaError('must be a JSON Schema object')
  const { validate, weight } = compile(schema as Record<string, unknown>, rules)
  return { validate, weight: CODE_WEIGHT * text.length + weight }
}

function compile(schema: Record<string, unknown>, rules: SchemaRules): Made {
  const named = schema.$schema
  const remote = remoteReference(schema)
  if (remote) throw new SchemaError(`refers to ${remote.slice(0, 200)}, which is not part of it`)
  if (named !== undefined) {
    const draft = typeof named === 'string' ? DRAFTS[named.replace(/#$/, '')] : undefined
    if (!draft) throw new SchemaError('$schema must be draft-07 or 2020-12')
    return compileAs(draft, schema, rules)
  }
  if (rules.strict) return compileAs('2020-12', schema, rules)
  try {
    return compileAs('2020-12', schema, rules)
  } catch (error) {
    if (!(error instanceof SchemaError) || error.cause instanceof CpuTimeExceeded) throw error
    // Tuples in the form of draft-07 are only valid in that.
    return compileAs('07', schema, rules)
  }
}

function compileAs(draft: Draft, schema: Record<string, unknown>, { strict }: SchemaRules): Made {
  const check = metaSchema(draft)
  try {
    return runWithCpuLimit(COMPILE_MS, () => {
      if (!check(schema)) {
        const [{ instancePath, message }] = check.errors ?? [{ instancePath: '', message: undefined }]
        throw new SchemaError(`schema is invalid: ${instancePath || '(root)'} ${message ?? 'is not valid'}`)
      }
      let weight = 0
      const regExp = (text: string, flags: string) => {
        const pattern = compilePattern(text, flags, { backtracking: !strict })
        weight += pattern.weight
        return pattern
      }
      regExp.code = 'compilePattern'
      // An instance a schema: what one declares, `$id` above all, is never seen by another.
      const own: Options = {
        ...options,
        meta: false,
        validateSchema: false,
        validateFormats: strict,
        code: { regExp },
      }
      const ajv = draft === '07' ? new Ajv(own) : new Ajv2020(own)
      if (strict) addFormats.default(ajv, { mode: 'full', formats: [...FORMATS] })
      const validate = ajv.compile(schema as AnySchema)
      if ('$async' in validate) throw new SchemaError('$async is not supported')
      return { validate, weight }
    })
  } catch (error) {
    if (error instanceof SchemaError || error instanceof CpuStarved) throw error
    const reason =
      error instanceof CpuTimeExceeded
        ? 'takes too long to compile'
        : error instanceof RangeError
          ? 'is nested too deeply'
          : (error as Error).message
    throw new SchemaError(reason.slice(0, 500), { cause: error })
  }
}

/** Keywords whose values are data, not schemas. */
const LITERALS: readonly string[] = ['const', 'enum', 'default', 'examples']

/** A `$ref` that leaves the schema: absolute, and not the `$id` of a part of it. Compiling finds those that are used. */
function remoteReference(schema: object): string | null {
  const ids = new Set<string>()
  const references: string[] = []
  const stack: unknown[] = [schema]
  while (stack.length > 0) {
    const node = stack.pop()
    if (typeof node !== 'object' || node === null) continue
    for (const [key, value] of Object.entries(node)) {
      if (key === '$id' && typeof value === 'string') ids.add(value.split('#', 1)[0])
      else if ((key === '$ref' || key === '$dynamicRef') && typeof value === 'string') references.push(value)
      else if (!LITERALS.includes(key)) stack.push(value)
    }
  }
  return references.find(reference => URL.canParse(reference) && !ids.has(reference.split('#', 1)[0])) ?? null
}
