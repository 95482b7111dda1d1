import { type Problem, raise } from '../../core/api/errors.ts'
import { checkSchema, SchemaError, schemaProblems } from '../../core/api/json-schema.ts'

// format is an annotation and unknown keywords are ignored (execution, 8.8).
const rules = { strict: false }

/**
 * Refuses what is no usable JSON Schema, draft-07 or 2020-12: INVALID_OUTPUT_SCHEMA with the reason. Returns it typed.
 */
export function checkOutputSchema(schema: unknown): Record<string, unknown> {
  refusing(() => checkSchema(JSON.stringify(schema), rules))
  return schema as Record<string, unknown>
}

/** Where a value breaks a schema: nothing when it satisfies it. Raises INVALID_OUTPUT_SCHEMA. */
export function outputProblems(schema: unknown, value: unknown): Problem[] {
  return refusing(() => schemaProblems(JSON.stringify(schema), value, rules)).map(({ keyword, pointer, message }) => ({
    code: keyword.replace(/[A-Z]/g, letter => `_${letter}`).toUpperCase(),
    path: pointer
      .slice(1)
      .split('/')
      .map(part => part.replaceAll('~1', '/').replaceAll('~0', '~'))
      .reduce((path, part) => (/^\d+$/.test(part) ? `${path}[${part}]` : path === '' ? part : `${path}.${part}`), ''),
    message,
  }))
}

function refusing<T>(work: () => T): T {
  try {
    return work()
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    const { message } = error
    raise('INVALID_OUTPUT_SCHEMA', {
      message: `output_schema: ${message}`,
      meta: { problems: [{ code: 'INVALID_OUTPUT_SCHEMA', path: 'output_schema', message }] },
    })
  }
}
