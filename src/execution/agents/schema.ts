import { Ajv, type AnySchema, type Options, type ValidateFunction } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { type Problem, raise } from '../../core/errors.ts'

const MAX_SCHEMA_BYTES = 64 * 1024
const KEPT_VALIDATORS = 200
const MAX_PROBLEMS = 50

// format is an annotation and unknown keywords are ignored (execution, 8.8).
const options: Options = {
  strict: false,
  validateFormats: false,
  allErrors: true,
  addUsedSchema: false,
  logger: false,
}

const drafts = { '07': new Ajv(options), '2020-12': new Ajv2020(options) }

const META_SCHEMAS: Record<string, keyof typeof drafts> = {
  'http://json-schema.org/draft-07/schema': '07',
  'https://json-schema.org/draft-07/schema': '07',
  'https://json-schema.org/draft/2020-12/schema': '2020-12',
}

const validators = new Map<string, ValidateFunction>()

/**
 * Refuses what is no usable JSON Schema, draft-07 or 2020-12: INVALID_OUTPUT_SCHEMA with the reason. Returns it typed.
 */
export function checkOutputSchema(schema: unknown): Record<string, unknown> {
  validatorOf(schema)
  return schema as Record<string, unknown>
}

/** Where a value breaks a schema: nothing when it satisfies it. Raises INVALID_OUTPUT_SCHEMA. */
export function schemaProblems(schema: unknown, value: unknown): Problem[] {
  const validate = validatorOf(schema)
  if (validate(value)) return []
  return (validate.errors ?? []).slice(0, MAX_PROBLEMS).map(error => ({
    code: error.keyword.replace(/[A-Z]/g, letter => `_${letter}`).toUpperCase(),
    path: error.instancePath
      .slice(1)
      .split('/')
      .map(part => part.replaceAll('~1', '/').replaceAll('~0', '~'))
      .reduce((path, part) => (/^\d+$/.test(part) ? `${path}[${part}]` : path === '' ? part : `${path}.${part}`), ''),
    message: error.message ?? 'is not valid',
  }))
}

function validatorOf(schema: unknown): ValidateFunction {
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema)) refuse('must be a JSON Schema object')
  const text = JSON.stringify(schema)
  const known = validators.get(text)
  if (known) return known
  if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) refuse('must be at most 64 KiB')
  const made = compile(schema as Record<string, unknown>)
  if (validators.size >= KEPT_VALIDATORS) validators.delete(validators.keys().next().value as string)
  validators.set(text, made)
  return made
}

function compile(schema: Record<string, unknown>): ValidateFunction {
  const named = schema.$schema
  const remote = remoteReference(schema)
  if (remote) refuse(`refers to ${remote.slice(0, 200)}, which is not part of it`)
  if (named === undefined) {
    // Without a name the newer draft is tried first; tuples in the form of draft-07 are only valid in that.
    try {
      return compileAs('2020-12', schema)
    } catch {
      return refusing(() => compileAs('07', schema))
    }
  }
  const draft = typeof named === 'string' ? META_SCHEMAS[named.replace(/#$/, '')] : undefined
  if (!draft) refuse('$schema must be draft-07 or 2020-12')
  return refusing(() => compileAs(draft, schema))
}

function compileAs(draft: keyof typeof drafts, schema: Record<string, unknown>): ValidateFunction {
  const ajv = drafts[draft]
  try {
    const validate = ajv.compile(schema as AnySchema)
    if ('$async' in validate) throw new Error('$async is not supported')
    return validate
  } finally {
    // The instance would keep every schema it ever saw.
    ajv.removeSchema(schema as AnySchema)
  }
}

function refusing<T>(work: () => T): T {
  try {
    return work()
  } catch (error) {
    refuse((error as Error).message.slice(0, 500))
  }
}

function refuse(message: string): never {
  raise('INVALID_OUTPUT_SCHEMA', {
    message: `output_schema: ${message}`,
    meta: { problems: [{ code: 'INVALID_OUTPUT_SCHEMA', path: 'output_schema', message }] },
  })
}

/** A `$ref` that leaves the schema: absolute, and not the `$id` of a part of it. */
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
      else stack.push(value)
    }
  }
  return references.find(reference => URL.canParse(reference) && !ids.has(reference.replace(/#.*$/, ''))) ?? null
}
