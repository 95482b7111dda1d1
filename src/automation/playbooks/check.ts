import { isDeepStrictEqual } from 'node:util'
import { type Problem, problemsText, raise } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import type { Services } from '../../core/process/services.ts'
import { problemsOfSchemas } from '../orchestrations/schemas.ts'
import { truncateProblems } from '../orchestrations/validate.ts'
import type { PlaybookDefinition } from './definition.ts'
import { referenceProblems, requireStepRights } from './references.ts'
import { playbookLimitProblems, validatePlaybook } from './validate.ts'

function schemasOf({ steps, case_schema, input_schema }: PlaybookDefinition): [path: string, schema: object][] {
  const ofSteps = steps.map(({ result_schema }, index): [string, unknown] => [
    `steps[${index}].result_schema`,
    result_schema,
  ])
  const all: [string, unknown][] = [['case_schema', case_schema], ['input_schema', input_schema], ...ofSteps]
  return all.filter((entry): entry is [string, object] => isObject(entry[1]))
}

/**
 * Everything that is wrong with a definition, its schemas and what it names included, at most 1,000 problems.
 * @param asking.project in which what it names is looked up; null for none
 * @throws RunFirst within a transaction, SERVICE_NOT_READY
 */
export async function checkPlaybook(
  db: Queryable,
  services: Services,
  definition: PlaybookDefinition,
  asking: { project: string | null; tenant: string; inTransaction: boolean },
): Promise<Problem[]> {
  const problems = validatePlaybook(definition)
  if (playbookLimitProblems(definition).length > 0) return problems
  const { project } = asking
  return truncateProblems([
    ...problems,
    ...(await problemsOfSchemas(services, schemasOf(definition), asking)),
    ...(project === null ? [] : await referenceProblems(db, project, definition.steps)),
  ])
}

/**
 * Refuses a definition that cannot be written, or has done what the caller may not do, in the transaction that writes it.
 * @param stored the definition before; its steps ask for nothing as long as they stay
 * @throws PLAYBOOK_VALIDATION_FAILED with `meta.problems`, FORBIDDEN, RunFirst
 */
export async function requireValidPlaybook(
  { tx, services, allow }: Pick<Context, 'tx' | 'services' | 'allow'>,
  project: string,
  definition: PlaybookDefinition,
  stored?: PlaybookDefinition,
): Promise<void> {
  const problems = await checkPlaybook(tx, services, definition, { project, tenant: project, inTransaction: true })
  if (problems.length > 0) raise('PLAYBOOK_VALIDATION_FAILED', { message: problemsText(problems), meta: { problems } })
  if (!stored || !isDeepStrictEqual(stored.steps, definition.steps))
    await requireStepRights({ tx, allow }, project, definition.steps)
}
