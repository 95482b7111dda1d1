import { AppError } from '../../core/api/errors.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import type { Services } from '../../core/process/services.ts'
import { sealedFor, type TaskRow } from './model.ts'

/** What a task carries to its dispatches. Raises SECRET_NOT_DECRYPTABLE. */
export function contextOf(services: Services, task: TaskRow): ToolContext | null {
  if (task.context === null) return null
  const opened = services.secrets.open(task.context, sealedFor(task))
  if (!opened.ok)
    throw new AppError('SECRET_NOT_DECRYPTABLE', { message: 'The context of the task cannot be decrypted' })
  return JSON.parse(opened.value)
}

/** The same to be stored; null for an empty one, which clears it. */
export const sealedContext = (
  services: Services,
  owner: Pick<TaskRow, 'id' | 'project_id'>,
  context: ToolContext | null,
): string | null =>
  context === null || Object.keys(context).length === 0
    ? null
    : services.secrets.seal(JSON.stringify(context), sealedFor(owner))
