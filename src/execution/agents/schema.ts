import { type Problem, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { lenientSchema, SchemaError, schemaChecks } from '#core/json-schema/checks.ts'
import { wireProblems } from '#core/json-schema/problems.ts'

/**
 * Validates a JSON Schema (draft-07 or 2020-12) in the transaction that writes it, and returns it typed.
 * @throws INVALID_OUTPUT_SCHEMA with the reason, SERVICE_NOT_READY
 */
export async function checkOutputSchema(
  services: Services,
  projectId: string,
  schema: unknown,
): Promise<Record<string, unknown>> {
  await raiseSchemaError(schemaChecks(services).check(lenientSchema(projectId, schema)))
  return schema as Record<string, unknown>
}

/**
 * Returns the problems of a value against a schema; empty when it satisfies the schema.
 * @throws INVALID_OUTPUT_SCHEMA, SERVICE_NOT_READY, and the reason of `signal`
 */
export async function outputProblems(
  services: Services,
  projectId: string,
  schema: unknown,
  value: unknown,
  signal?: AbortSignal,
): Promise<Problem[]> {
  const [problems] = await raiseSchemaError(
    schemaChecks(services).problems(lenientSchema(projectId, schema), [value], { signal }),
  )
  return wireProblems(problems)
}

async function raiseSchemaError<T>(work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    const { message } = error
    return raise('INVALID_OUTPUT_SCHEMA', {
      message: `output_schema: ${message}`,
      meta: { problems: [{ code: 'INVALID_OUTPUT_SCHEMA', path: 'output_schema', message }] },
    })
  }
}
