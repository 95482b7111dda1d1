import { createContext, Script } from 'node:vm'
import { Ajv, type AnySchema, type Options, type ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { LRUCache } from 'lru-cache'
import { RE2JS } from 're2js'

/**
 * JSON Schemas that callers write, draft 2020-12 or draft-07. They are programs of strangers: what a schema may cost is
 * bounded when it is compiled and each time a value is judged by it, and nothing outside of it is ever read.
 */

/** What of a value breaks a schema; `pointer` is a JSON pointer, empty for the value itself. */
export type SchemaProblem = { keyword: string; pointer: string; message: string }

/** A schema that cannot be used; the message says why. */
export class SchemaError extends Error {}

export type SchemaRules = {
  /**
   * Formats date, date-time, email, uri and uuid are asserted, patterns must run in linear time, and draft-07 has to be
   * named. Otherwise formats are annotations, a pattern may backtrack within the time limit, and a schema that is none
   * of 2020-12 is tried as draft-07.
   */
  strict: boolean
}

const MAX_SCHEMA_BYTES = 64 * 1024
const MAX_PROBLEMS = 50
/** Processor time to judge one value. */
const JUDGE_MS = 50
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

/** A pattern on an engine that does not backtrack. Throws for one that needs to, and for one that JavaScript refuses. */
const linear = Object.assign(
  (pattern: string, flags: string) => {
    new RegExp(pattern, flags)
    const expression = RE2JS.compile(RE2JS.translateRegExp(pattern))
    return { test: (text: string) => expression.test(text), toString: () => pattern }
  },
  { code: 'linear' },
)

const linearIfPossible = Object.assign(
  (pattern: string, flags: string) => {
    try {
      return linear(pattern, flags)
    } catch {
      return new RegExp(pattern, flags)
    }
  },
  { code: 'linearIfPossible' },
)

/** Judges schemas themselves; made at the first use, outside of any time limit, because it takes tens of milliseconds. */
const metaSchemas = new Map<Draft, ValidateFunction>()

function metaSchema(draft: Draft): ValidateFunction {
  const known = metaSchemas.get(draft)
  if (known) return known
  const ajv = draft === '07' ? new Ajv(options) : new Ajv2020(options)
  const made = ajv.getSchema(META_SCHEMAS[draft]) as ValidateFunction
  metaSchemas.set(draft, made)
  return made
}

const compiled = new LRUCache<string, ValidateFunction>({
  max: 500,
  maxSize: 2 * 1024 * 1024,
  sizeCalculation: (_validate, key) => key.length,
})

/**
 * Refuses what is no usable schema.
 * @param text the schema as JSON
 * @throws SchemaError
 */
export function checkSchema(text: string, rules: SchemaRules): void {
  validatorOf(text, rules)
}

/**
 * Where a value breaks a schema, at most 50 places; nothing when it satisfies it. A value that takes longer than 50 ms to
 * judge, or that the schema follows without end, breaks it.
 * @param text the schema as JSON
 * @throws SchemaError
 */
export function schemaProblems(text: string, value: unknown, rules: SchemaRules): SchemaProblem[] {
  const validate = validatorOf(text, rules)
  try {
    if (limited(JUDGE_MS, () => validate(value))) return []
  } catch (error) {
    // What was interrupted may be left half-way.
    compiled.delete(keyOf(text, rules))
    if (error instanceof OutOfTime) return [unjudged('timeout', `takes longer than ${JUDGE_MS} ms to judge`)]
    if (error instanceof RangeError) return [unjudged('recursion', 'leads the schema into itself without end')]
    throw error
  }
  const errors = validate.errors ?? []
  validate.errors = null
  return errors.slice(0, MAX_PROBLEMS).map(({ keyword, instancePath, message, params }) => {
    const property = params.additionalProperty ?? params.unevaluatedProperty
    const text = message ?? 'is not valid'
    return { keyword, pointer: instancePath, message: property === undefined ? text : `${text}: '${property}'` }
  })
}

const unjudged = (keyword: string, message: string): SchemaProblem => ({ keyword, pointer: '', message })

const keyOf = (text: string, { strict }: SchemaRules): string => (strict ? `s${text}` : `l${text}`)

function validatorOf(text: string, rules: SchemaRules): ValidateFunction {
  const key = keyOf(text, rules)
  const known = compiled.get(key)
  if (known) return known
  if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) throw new SchemaError('must be at most 64 KiB')
  const schema: unknown = JSON.parse(text)
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema))
    throw new SchemaError('must be a JSON Schema object')
  const made = compile(schema as Record<string, unknown>, rules)
  compiled.set(key, made)
  return made
}

function compile(schema: Record<string, unknown>, rules: SchemaRules): ValidateFunction {
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
    if (error instanceof SchemaError && error.cause instanceof OutOfTime) throw error
    // Tuples in the form of draft-07 are only valid in that.
    return compileAs('07', schema, rules)
  }
}

function compileAs(draft: Draft, schema: Record<string, unknown>, { strict }: SchemaRules): ValidateFunction {
  const judge = metaSchema(draft)
  try {
    return limited(COMPILE_MS, () => {
      if (!judge(schema)) {
        const [{ instancePath, message }] = judge.errors ?? [{ instancePath: '', message: undefined }]
        throw new SchemaError(`schema is invalid: ${instancePath || '(root)'} ${message ?? 'is not valid'}`)
      }
      // An instance a schema: what one declares, `$id` above all, is never seen by another.
      const own: Options = {
        ...options,
        meta: false,
        validateSchema: false,
        validateFormats: strict,
        code: { regExp: strict ? linear : linearIfPossible },
      }
      const ajv = draft === '07' ? new Ajv(own) : new Ajv2020(own)
      if (strict) addFormats.default(ajv, { mode: 'full', formats: [...FORMATS] })
      const validate = ajv.compile(schema as AnySchema)
      if ('$async' in validate) throw new SchemaError('$async is not supported')
      return validate
    })
  } catch (error) {
    if (error instanceof SchemaError) throw error
    const reason =
      error instanceof OutOfTime
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
      if (key === '$id' && typeof value === 'string') ids.add(value.replace(/#.*$/, ''))
      else if ((key === '$ref' || key === '$dynamicRef') && typeof value === 'string') references.push(value)
      else if (!LITERALS.includes(key)) stack.push(value)
    }
  }
  return references.find(reference => URL.canParse(reference) && !ids.has(reference.replace(/#.*$/, ''))) ?? null
}

class OutOfTime extends Error {}

const sandbox: { job: () => unknown } = { job: () => undefined }
const room = createContext(sandbox)
const script = new Script('job()')
const TRIES = 3
/** How many times its processor time a try may take on the wall. */
const PATIENCE = 4

/**
 * Runs synchronous work and interrupts it after `ms` of processor time, in JavaScript and in regular expressions; costs
 * about 0.2 ms. The interruption is V8's, after time on the wall: as much at first, and where the process was kept from
 * the processor meanwhile, it tries again with twice what it would have needed.
 * @throws OutOfTime, and what the work throws
 */
function limited<T>(ms: number, work: () => T): T {
  let timeout = ms
  for (let tries = TRIES; ; tries--) {
    const before = process.threadCpuUsage()
    sandbox.job = work
    try {
      return script.runInContext(room, { timeout }) as T
    } catch (error) {
      if ((error as { code?: unknown }).code !== 'ERR_SCRIPT_EXECUTION_TIMEOUT') throw error
      const { user, system } = process.threadCpuUsage(before)
      const used = (user + system) / 1000
      if (tries === 1 || used >= ms * 0.9) throw new OutOfTime()
      timeout = Math.ceil(Math.min(PATIENCE * ms, (2 * ms * timeout) / used))
    } finally {
      sandbox.job = () => undefined
    }
  }
}
