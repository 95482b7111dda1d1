import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { versionCache } from '#core/resources/version-cache.ts'
import { Machine, type WorkflowDefinition } from './definition.ts'
import { workflowVersions } from './model.ts'

const machines = versionCache(
  workflowVersions,
  32 * 1024 * 1024,
  (definition: WorkflowDefinition, author) => new Machine(definition, author),
)

/** Returns a version of a workflow; cached, since versions never change. Null if it was deleted. */
export const pinnedMachine = (
  services: Services,
  db: Queryable,
  { workflow_id, workflow_version }: { workflow_id: string; workflow_version: number },
): Promise<Machine | null> => machines(services, db, workflow_id, workflow_version)
