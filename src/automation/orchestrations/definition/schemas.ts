import type { Problem } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { lenientSchema, SchemaError, schemaChecks } from '#core/json-schema/checks.ts'
import { wireProblems } from '#core/json-schema/problems.ts'
import type { GraphDefinition } from './definition.ts'
import { graphLimitProblems } from './validate.ts'

/**
 * Validates a value against a schema of a definition; returns problems with paths below the value. Empty without a
 * schema.
 * @param at names of the value and of the schema
 */
export async function valueProblems(
  services: Services,
  projectId: string,
  schema: object | null,
  value: unknown,
  [name, schemaName]: readonly [string, string],
): Promise<Problem[]> {
  if (schema === null) return []
  try {
    const [problems] = await schemaChecks(services).problems(lenientSchema(projectId, schema), [value])
    return wireProblems(problems, name)
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    return [{ code: 'INVALID_VALUE', path: schemaName, message: error.message }]
  }
}

/** Returns the schemas of a definition by path. Values that are not objects are reported by `validateGraph`. */
function schemasOf({ nodes, state_schema, input_schema }: GraphDefinition): [path: string, schema: object][] {
  const ofNodes = nodes.map(({ type, output_schema }, index): [string, unknown] => [
    `nodes[${index}].output_schema`,
    type === 'agent' ? output_schema : null,
  ])
  const all: [string, unknown][] = [['state_schema', state_schema], ['input_schema', input_schema], ...ofNodes]
  return all.filter((entry): entry is [string, object] => isObject(entry[1]))
}

/**
 * Returns the problems of invalid schemas in a definition; none for a definition above the size limits.
 * @param tenant project, or user without one, whose share of the worker threads is used
 * @throws SERVICE_NOT_READY
 */
export const schemaProblems = async (
  services: Services,
  definition: GraphDefinition,
  tenant: string,
): Promise<Problem[]> =>
  graphLimitProblems(definition).length > 0 ? [] : problemsOfSchemas(services, schemasOf(definition), tenant)

/** Returns the problems of invalid schemas, by path. */
export async function problemsOfSchemas(
  services: Services,
  schemas: readonly [path: string, schema: object][],
  tenant: string,
): Promise<Problem[]> {
  const refusals = await schemaChecks(services).refusals(schemas.map(([, schema]) => lenientSchema(tenant, schema)))
  return refusals.flatMap((message, index) =>
    message === null ? [] : [{ code: 'SCHEMA_INVALID', path: schemas[index][0], message }],
  )
}
