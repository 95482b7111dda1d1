import type { ToolContext } from '#core/api/tool-context.ts'
import type { Services } from '#core/base/services.ts'
import { openJson, sealJson } from '#core/secrets/json.ts'
import { sealedForTask, type TaskRow } from './model.ts'

/** Returns the tool context of a task's dispatches. @throws SECRET_NOT_DECRYPTABLE */
export function taskToolContext(services: Services, task: TaskRow): ToolContext | null {
  return task.context === null ? null : openJson(services, task.context, sealedForTask(task), 'The context of the task')
}

/** Seals a tool context for storage. Null for an empty context, which clears the stored one. */
export const sealTaskContext = (
  services: Services,
  owner: Pick<TaskRow, 'id' | 'project_id'>,
  context: ToolContext | null,
): string | null =>
  context === null || Object.keys(context).length === 0 ? null : sealJson(services, context, sealedForTask(owner))
