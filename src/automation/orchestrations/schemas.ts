import type { Problem } from '../../core/api/errors.ts'
import { RerunAfter } from '../../core/db/pool.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import { SchemaError, type SchemaOf, schemaChecks } from '../../core/json-schema/checks.ts'
import { wireProblems } from '../../core/json-schema/problems.ts'
import type { Services } from '../../core/process/services.ts'
import type { GraphDefinition } from './definition.ts'

/** Schemas that one definition has compiled at a time. */
const AT_ONCE = 4

/** A schema of a graph: formats are annotations and unknown keywords are ignored. */
export const graphSchema = (project: string, schema: object): SchemaOf => ({
  project,
  text: JSON.stringify(schema),
  rules: { strict: false },
})

/**
 * Why a value does not satisfy a schema that a definition gave it, as problems with paths below its own; empty when it does,
 * and without a schema.
 * @param at the names of the value and of the schema
 */
export async function checkedValue(
  projectId: string,
  schema: object | null,
  [value, schemaName]: readonly [string, string],
  check: (schema: SchemaOf) => Promise<Parameters<typeof wireProblems>[0]>,
): Promise<Problem[]> {
  if (schema === null) return []
  try {
    return wireProblems(await check(graphSchema(projectId, schema)), value)
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    return [{ code: 'INVALID_VALUE', path: schemaName, message: error.message }]
  }
}

/** The schemas of a definition by their paths. What is no object has been reported with the graph. */
function schemasOf({ nodes, state_schema, input_schema }: GraphDefinition): [path: string, schema: object][] {
  const ofNodes = nodes.map(({ type, output_schema }, index): [string, unknown] => [
    `nodes[${index}].output_schema`,
    type === 'agent' ? output_schema : null,
  ])
  const all: [string, unknown][] = [['state_schema', state_schema], ['input_schema', input_schema], ...ofNodes]
  return all.filter((entry): entry is [string, object] => isObject(entry[1]))
}

/**
 * The schemas of a definition that cannot be used. Within a transaction, which holds a connection, all that are not known
 * yet are compiled first and the transaction is run again.
 * @param asking.tenant the project, or without one the user, whose share of the threads it takes
 * @throws RunFirst, SERVICE_NOT_READY
 */
export const schemaProblems = (
  services: Services,
  definition: GraphDefinition,
  asking: { tenant: string; inTransaction: boolean },
): Promise<Problem[]> => problemsOfSchemas(services, schemasOf(definition), asking)

/** The same for any schemas by their paths. */
export async function problemsOfSchemas(
  services: Services,
  schemas: readonly [path: string, schema: object][],
  { tenant, inTransaction }: { tenant: string; inTransaction: boolean },
): Promise<Problem[]> {
  const checks = schemaChecks(services)
  const problems: Problem[] = []
  const pending: (() => Promise<unknown>)[] = []
  const check = async (path: string, schema: SchemaOf) => {
    try {
      await (inTransaction ? checks.checkInTransaction(schema) : checks.check(schema))
    } catch (error) {
      if (error instanceof RerunAfter) pending.push(error.work)
      else if (error instanceof SchemaError) problems.push({ code: 'SCHEMA_INVALID', path, message: error.message })
      else throw error
    }
  }
  await someAtOnce(
    schemas.map(
      ([path, schema]) =>
        () =>
          check(path, graphSchema(tenant, schema)),
    ),
  )
  if (pending.length > 0) throw new RerunAfter(() => someAtOnce(pending))
  return problems
}

async function someAtOnce(works: readonly (() => Promise<unknown>)[]): Promise<void> {
  const left = works.values()
  const worker = async () => {
    for (const work of left) await work()
  }
  await Promise.all(Array.from({ length: AT_ONCE }, worker))
}
