import { isDeepStrictEqual } from 'node:util'
import { problemsOfSchemas } from '#automation/orchestrations/definition/schemas.ts'
import { truncateProblems } from '#automation/orchestrations/definition/validate.ts'
import type { Context } from '#core/api/operation.ts'
import { type Problem, problemsText, raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { PlaybookDefinition } from './definition.ts'
import { referenceProblems, requireStepPermissions } from './references.ts'
import { playbookLimitProblems, validatePlaybook } from './validate.ts'

function schemasOf({ steps, case_schema, input_schema }: PlaybookDefinition): [path: string, schema: object][] {
  const ofSteps = steps.map(({ result_schema }, index): [string, unknown] => [
    `steps[${index}].result_schema`,
    result_schema,
  ])
  const all: [string, unknown][] = [['case_schema', case_schema], ['input_schema', input_schema], ...ofSteps]
  return all.filter((entry): entry is [string, object] => isObject(entry[1]))
}

/** Returns the problems of invalid schemas in a definition; none for a definition above the size limits. */
export const schemaProblems = async (
  services: Services,
  definition: PlaybookDefinition,
  tenant: string,
): Promise<Problem[]> =>
  playbookLimitProblems(definition).length > 0 ? [] : problemsOfSchemas(services, schemasOf(definition), tenant)

/**
 * Returns the problems of a definition, including its schemas and references, at most 1,000.
 * @param options.project project in which references are looked up; null for none
 * @throws SERVICE_NOT_READY
 */
export async function checkPlaybook(
  db: Queryable,
  services: Services,
  definition: PlaybookDefinition,
  { project, tenant }: { project: string | null; tenant: string },
): Promise<Problem[]> {
  const problems = validatePlaybook(definition)
  if (playbookLimitProblems(definition).length > 0) return problems
  return truncateProblems([
    ...problems,
    ...(await schemaProblems(services, definition, tenant)),
    ...(project === null ? [] : await referenceProblems(db, project, definition.steps)),
  ])
}

/** Refuses an invalid definition, without its references. @throws VALIDATION_FAILED */
export async function validateDefinition(services: Services, project: string, definition: PlaybookDefinition) {
  const problems = [...validatePlaybook(definition), ...(await schemaProblems(services, definition, project))]
  if (problems.length > 0) raiseInvalid(truncateProblems(problems))
}

/**
 * Refuses a definition that is invalid or requires permissions which the caller lacks, in the transaction that
 * writes it.
 * @param stored the previous definition: its steps require no permissions again unless they change
 * @throws PLAYBOOK_VALIDATION_FAILED with `meta.problems`, FORBIDDEN
 */
export async function requireValidPlaybook(
  { tx, services, allow }: Pick<Context, 'tx' | 'services' | 'allow'>,
  project: string,
  definition: PlaybookDefinition,
  stored?: PlaybookDefinition,
): Promise<void> {
  const problems = await checkPlaybook(tx, services, definition, { project, tenant: project })
  if (problems.length > 0) raise('PLAYBOOK_VALIDATION_FAILED', { message: problemsText(problems), meta: { problems } })
  if (!stored || !isDeepStrictEqual(stored.steps, definition.steps))
    await requireStepPermissions({ tx, allow }, project, definition.steps)
}
