import { type Kind, kinds } from '../api/kind.ts'

/**
 * Returns the kind whose IDs a field contains, by the name of the field: `agent_id`, `active_tool_ids`,
 * `summary_model_route_id`. Undefined for other fields, and for IDs of several kinds, such as `target_id`.
 */
export function referencedKind(field: string): Kind<any> | undefined {
  const words = field.split('_')
  const isOfIds = words.length > 1 && ['id', 'ids'].includes(words.pop() as string)
  const names = isOfIds ? words.map((_, index) => words.slice(index).join('_')) : []
  return names.map(kinds.find).find(kind => kind !== undefined)
}
