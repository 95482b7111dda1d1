import { useUserNames } from '#access.ts'
import { useMe } from '#projects.ts'
import * as strings from '#strings.ts'
import { visible } from './untrusted.ts'

/**
 * Returns a function for the name of a person who works in the project: the reader as such, others by their display name, by
 * their username for those who may list users, or by their ID.
 */
export function usePersonName(projectId: string): (id: string, displayName?: string | null) => string {
  const { data: me } = useMe()
  const { nameOf } = useUserNames(projectId)
  return (id, displayName) => (id === me?.id ? strings.you : visible(displayName ?? nameOf(id) ?? id))
}
