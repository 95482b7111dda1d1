import { Ajv, type AnySchema, type Options, type ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { LRUCache } from 'lru-cache'
import { RE2JS } from 're2js'
import { CpuStarved, CpuTimeExceeded, runWithCpuLimit } from '../threads/cpu-limit.ts'
import {
  CHECK_MS,
  MAX_SCHEMA_BYTES,
  noVerdictProblem,
  SchemaError,
  type SchemaProblem,
  type SchemaRules,
  timeoutProblem,
} from './model.ts'

/**
 * Compiles and runs JSON Schemas of callers, draft 2020-12 or draft-07; only for the worker threads (task.ts).
 * The cost of compiling a schema and of each check is bounded, and no external schema is read.
 */

const MAX_PROBLEMS = 50
/** Processor time limit for compiling a schema; 64 KiB of ordinary properties take a quarter of a second. */
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
  // `required: ["toString"]` refers to own properties only.
  ownProperties: true,
  // Keeps the size of the generated code proportional to the schema.
  inlineRefs: false,
}

/** Validators of schemas, compiled at the first use, outside any time limit, because it takes tens of milliseconds. */
const metaValidators = new Map<Draft, ValidateFunction>()

function metaValidator(draft: Draft): ValidateFunction {
  const cached = metaValidators.get(draft)
  if (cached) return cached
  const ajv = draft === '07' ? new Ajv(options) : new Ajv2020(options)
  const validator = ajv.getSchema(META_SCHEMAS[draft]) as ValidateFunction
  metaValidators.set(draft, validator)
  return validator
}

/** The validator of a schema and its approximate memory in bytes. */
type Compiled = { validate: ValidateFunction; weight: number }

type CachedSchema = Compiled & {
  project: string
  /** Whether it was never run: V8 compiles its code at the first run, which takes up to 200 ms. */
  fresh: boolean
}

/** Memory of generated code per character of its schema: 15 measured. */
const CODE_WEIGHT = 16
/** Most memory for compiled schemas. */
const MAX_WEIGHT = 64 * 1024 * 1024

/**
 * Cache of compiled schemas. When it is full, the project with the most memory loses its least recently used schema.
 */
export class CompiledSchemas {
  /** Least recently used first. */
  readonly #cache = new Map<string, CachedSchema>()
  readonly #weights = new Map<string, number>()
  /** Schemas that exceeded the time limit with some value: their first run is not repeated. */
  readonly #slow = new LRUCache<string, true>({ max: 1000 })

  /**
   * Checks that a schema can be used.
   * @param text the schema as JSON
   * @throws SchemaError
   */
  check(project: string, text: string, rules: SchemaRules): void {
    this.#getOrCompile(project, text, rules)
  }

  /**
   * Returns the violations of a value, at most 50. A value that takes longer than 50 ms to check, or on which the
   * schema recurses without end, is a violation.
   * @param text the schema as JSON
   * @throws SchemaError
   */
  problems(project: string, text: string, value: unknown, rules: SchemaRules): SchemaProblem[] {
    const compiled = this.#getOrCompile(project, text, rules)
    const { validate } = compiled
    try {
      if (runValidator(compiled, value)) return []
    } catch (error) {
      // An interrupted validator may be in an inconsistent state.
      const key = keyOf(project, text, rules)
      this.#drop(key)
      if (error instanceof CpuTimeExceeded) {
        this.#slow.set(key, true)
        return [timeoutProblem()]
      }
      if (error instanceof RangeError) return [noVerdictProblem('recursion', 'makes the schema recurse without end')]
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

  #getOrCompile(project: string, text: string, rules: SchemaRules): CachedSchema {
    const key = keyOf(project, text, rules)
    const compiled = this.#cache.get(key) ?? {
      ...compileText(text, rules),
      project,
      fresh: !this.#slow.has(key),
    }
    this.#drop(key)
    this.#cache.set(key, compiled)
    this.#weights.set(project, (this.#weights.get(project) ?? 0) + compiled.weight)
    this.#evict(key)
    return compiled
  }

  #drop(key: string): void {
    const dropped = this.#cache.get(key)
    if (!dropped) return
    this.#cache.delete(key)
    const weight = (this.#weights.get(dropped.project) as number) - dropped.weight
    if (weight > 0) this.#weights.set(dropped.project, weight)
    else this.#weights.delete(dropped.project)
  }

  #evict(exceptKey: string): void {
    for (;;) {
      const weights = [...this.#weights]
      if (weights.reduce((sum, [, weight]) => sum + weight, 0) <= MAX_WEIGHT) return
      const [largest] = weights.reduce((max, entry) => (entry[1] > max[1] ? entry : max))
      const oldest = [...this.#cache].find(([key, { project }]) => project === largest && key !== exceptKey)
      if (!oldest) return
      this.#drop(oldest[0])
    }
  }
}

const keyOf = (project: string, text: string, { strict }: SchemaRules): string => `${project} ${strict} ${text}`

/** @throws CpuTimeExceeded, CpuStarved, RangeError for a stack overflow */
function runValidator(compiled: CachedSchema, value: unknown): boolean {
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

function compileText(text: string, rules: SchemaRules): Compiled {
  if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) throw new SchemaError('must be at most 64 KiB')
  const schema: unknown = JSON.parse(text)
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema))
    throw new SchemaError('must be a JSON Schema object')
  const { validate, weight } = compile(schema as Record<string, unknown>, rules)
  return { validate, weight: CODE_WEIGHT * text.length + weight }
}

function compile(schema: Record<string, unknown>, rules: SchemaRules): Compiled {
  const declaredDraft = schema.$schema
  const remote = findRemoteReference(schema)
  if (remote) throw new SchemaError(`refers to ${remote.slice(0, 200)}, which is not part of it`)
  if (declaredDraft !== undefined) {
    const draft = typeof declaredDraft === 'string' ? DRAFTS[declaredDraft.replace(/#$/, '')] : undefined
    if (!draft) throw new SchemaError('$schema must be draft-07 or 2020-12')
    return compileAs(draft, schema, rules)
  }
  if (rules.strict) return compileAs('2020-12', schema, rules)
  try {
    return compileAs('2020-12', schema, rules)
  } catch (error) {
    if (!(error instanceof SchemaError) || error.cause instanceof CpuTimeExceeded) throw error
    // Tuples in draft-07 syntax are invalid in 2020-12.
    return compileAs('07', schema, rules)
  }
}

function compileAs(draft: Draft, schema: Record<string, unknown>, { strict }: SchemaRules): Compiled {
  const check = metaValidator(draft)
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
      // One instance per schema, so that no schema sees the declarations of another one, above all its `$id`.
      const schemaOptions: Options = {
        ...options,
        meta: false,
        validateSchema: false,
        validateFormats: strict,
        code: { regExp },
      }
      const ajv = draft === '07' ? new Ajv(schemaOptions) : new Ajv2020(schemaOptions)
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

/** A compiled pattern with the interface that ajv uses, and its approximate memory in bytes. */
type Pattern = { test(text: string): boolean; toString(): string; weight: number }

/** Memory of a pattern: 7 KB, and 64 bytes per instruction of its program; measured. */
const PATTERN_BYTES = 7 * 1024
const INSTRUCTION_BYTES = 64

/**
 * Compiles a regular expression of a schema for an engine without backtracking. With `backtracking`, patterns that
 * require it (lookaround, backreferences, large repeats) are run by V8. Either way the CPU limit of the check applies.
 * @throws Error for a pattern that JavaScript refuses, and without `backtracking` for a pattern that requires it
 */
function compilePattern(text: string, flags: string, { backtracking }: { backtracking: boolean }): Pattern {
  const native = new RegExp(text, flags)
  try {
    const linear = RE2JS.compile(RE2JS.translateRegExp(text))
    const weight = PATTERN_BYTES + INSTRUCTION_BYTES * linear.programSize()
    return { test: value => linear.test(value), toString: () => text, weight }
  } catch (error) {
    if (!backtracking) throw error
    return { test: value => native.test(value), toString: () => text, weight: PATTERN_BYTES }
  }
}

/** Keywords whose values are data, not schemas. */
const LITERALS: readonly string[] = ['const', 'enum', 'default', 'examples']

/**
 * Returns the first absolute `$ref` that is not the `$id` of a part of the schema, null without any. Unresolved
 * relative references fail when the schema is compiled.
 */
function findRemoteReference(schema: object): string | null {
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
