import type { Me, OwnPermission, Project } from '@muster/client'
import { getMe, listOwnPermissions, listProjects } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useIds } from './address.ts'
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
export const useProjectId = (): string => useIds().projectId

const PAGE = 100

/** Reads what the user may do in a project. Every view waits for it: pages after the first are requested together. */
async function readPermissions(project_id: string | undefined, signal: AbortSignal): Promise<OwnPermission[]> {
  const read = async (offset: number) => listOwnPermissions(api, { project_id, limit: PAGE, offset }, { signal }).page()
  const first = await read(0)
  const offsets: number[] = []
  for (let offset = PAGE; offset < first.total; offset += PAGE) offsets.push(offset)
  return [first, ...(await Promise.all(offsets.map(read)))].flatMap(({ data }) => data)
}

/** The properties of an operation by which the console decides whether the user may call it. */
export type Operation = { readonly action: string | undefined }

/** Says whether the user may call an operation; undefined while that is not known. */
export type Permissions = (operation: Operation) => boolean | undefined

/** Returns a function that says whether the user may call an operation in a project; undefined while that is not known. */
export function usePermissions(projectId: string | undefined): Permissions {
  const { data, errorUpdateCount } = useQuery({
    queryKey: ['permissions', projectId],
    queryFn: async ({ signal }) => {
      const own = await readPermissions(projectId, signal)
      return new Set(own.filter(({ allowed }) => allowed !== 'none').map(({ action }) => action))
    },
    enabled: projectId !== undefined,
    staleTime: 60_000,
  })
  // Without an answer nothing is hidden, also while the query is repeated: the service decides on each request.
  return ({ action }) => action === undefined || (data ? data.has(action) : errorUpdateCount > 0 || undefined)
}
