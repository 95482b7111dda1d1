import type { Me, Project } from '@muster/client'
import { getMe, listOwnPermissions, listProjects } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useParams } from '@tanstack/react-router'
import { api } from './api.ts'

/** Projects that the switcher offers. */
const SWITCHER_ROWS = 50

export const useMe = () =>
  useQuery<Me>({ queryKey: ['me'], queryFn: async ({ signal }) => getMe(api, {}, { signal }), staleTime: 60_000 })

export const useProjects = () =>
  useQuery<{ data: Project[]; total: number }>({
    queryKey: ['projects'],
    queryFn: async ({ signal }) => listProjects(api, { limit: SWITCHER_ROWS }, { signal }).page(),
    staleTime: 10_000,
  })

/** Returns the project of the address. */
export const useProjectId = (): string => (useParams({ strict: false }) as { projectId: string }).projectId

/** Returns a function that says whether the user may do an action in a project; undefined while that is not known. */
export function usePermissions(projectId: string | undefined) {
  const { data, errorUpdateCount } = useQuery({
    queryKey: ['permissions', projectId],
    queryFn: async ({ signal }) => {
      const own = await listOwnPermissions(api, { project_id: projectId }, { signal }).all()
      return new Set(own.filter(({ allowed }) => allowed !== 'none').map(({ action }) => action))
    },
    enabled: projectId !== undefined,
    staleTime: 60_000,
  })
  // Without an answer nothing is hidden, also while the query is repeated: the service decides on each request.
  return (action: string): boolean | undefined => (data ? data.has(action) : errorUpdateCount > 0 || undefined)
}
