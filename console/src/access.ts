import type { Policy, User } from '@muster/client'
import { listPermissions, listPolicies, listUsers } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from './api.ts'
import { visible } from './components/text.tsx'
import { usePermissions } from './projects.ts'

/** Policies that forms offer. */
const OFFERED = 500

/** The policies of the deployment, for those who may list them: as options of a form, and by ID. */
export function usePolicyNames(projectId: string) {
  const mayList = usePermissions(projectId)(listPolicies) === true
  const { data } = useQuery<Policy[]>({
    queryKey: ['policies', 'names'],
    queryFn: async ({ signal }) => listPolicies(api, {}, { signal }).all({ max: OFFERED }),
    enabled: mayList,
    staleTime: 10_000,
  })
  return {
    policies: data,
    options: data?.map(({ id, name }) => ({ value: id, label: visible(name ?? id) })),
    nameOf: (id: string): string => data?.find(policy => policy.id === id)?.name ?? id,
  }
}

/** The users of the deployment, for those who may list them. */
export function useUserNames(projectId: string) {
  const mayList = usePermissions(projectId)(listUsers) === true
  const { data } = useQuery<User[]>({
    queryKey: ['users', 'names'],
    queryFn: async ({ signal }) => listUsers(api, {}, { signal }).all({ max: OFFERED }),
    enabled: mayList,
    staleTime: 10_000,
  })
  return { users: data, nameOf: (id: string): string | undefined => data?.find(user => user.id === id)?.username }
}

/** All actions of policies, with the resource type that each is evaluated on. */
export function useActions() {
  const { data } = useQuery({
    queryKey: ['permissions', 'catalogue'],
    queryFn: async ({ signal }) => {
      const modules = await listPermissions(api, {}, { signal }).all()
      return modules.flatMap(({ actions }) => actions)
    },
    staleTime: Number.POSITIVE_INFINITY,
  })
  return data ?? []
}
