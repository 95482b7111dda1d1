import { z } from 'zod'
import { passesAdminGate } from '#core/api/access.ts'
import { actionCatalogue } from '#core/api/catalogue.ts'
import { Comparison } from '#core/api/compare.ts'
import { columnFilter, containsFilter } from '#core/api/filters.ts'
import { pageOf, pageOfArray, textFilter } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation, operations } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { versionNumber, versionQuery } from '#core/resources/version.ts'
import { userKind } from '../users/model.ts'
import { ownOrAdmin } from '../users/operations.ts'
import { attachPolicy, detachPolicy, setUserPolicies } from './attach.ts'
import { comparePolicyVersions, policyFields, policyVersion, requireUnattached, updatePolicyFields } from './change.ts'
import {
  Policy,
  PolicyAttachment,
  PolicyInput,
  PolicyPatch,
  PolicyVersion,
  policyDocumentProblems,
  policyKind,
  UserPoliciesInput,
} from './model.ts'
import { Simulation, SimulationInput, simulatePolicies } from './simulate.ts'
import { insertPolicy, listAttachments, listPolicyVersions, listUserPolicies } from './store.ts'

const PermissionModule = z
  .object({
    module: z.string().describe('Module of the API'),
    actions: z.array(
      z.object({
        action: z.string(),
        description: z.string(),
        resource_type: z.string().nullable(),
        gate: z.string().describe('Basis of the decision: policies, the admin role, ownership, or none'),
        operation_ids: z.array(z.string()),
      }),
    ),
  })
  .meta({ id: 'PermissionModule' })

export const permissionOperations: Operation[] = [
  operation({
    id: 'listPermissions',
    method: 'get',
    path: '/permissions',
    summary: 'List policy actions',
    description:
      'Returns the actions by module, with the operations that require each action and the resource type on which it is evaluated.',
    tag: 'Policies',
    gate: 'any',
    byDefinitions: true,
    paged: true,
    timed: false,
    answers: { 200: pageOf(PermissionModule) },
    run: async ({ page }) => pageOfArray(actionCatalogue(operations.all()), page),
  }),
]

const policies = resource(policyKind, { path: '/policies', tag: 'Policies' })

/**
 * Admits admins, and the user by a credential with all permissions of the user: policies name the projects, resources and
 * actions of the user, which a narrower credential must not learn.
 */
function ownPoliciesOrAdmin(caller: Caller, params: Record<string, string>): void {
  const row = { id: params.user_id, project_id: null }
  if (passesAdminGate(caller, 'users:GetUser', { kind: userKind as never, row })) return
  ownOrAdmin('users:GetUser')(caller, params)
  if (caller.project_id !== null || caller.layers.some(({ kind }) => kind === 'key'))
    raise('FORBIDDEN', { meta: { action: 'users:GetUser' } })
}

const adminOnly = { tag: 'Policies', gate: 'admin' } as const
const getOptions = { ...adminOnly, method: 'get', action: 'policies:GetPolicy' } as const
const attachOptions = { ...adminOnly, action: 'users:AttachUserPolicies', answers: { 204: null } } as const

const updateOperation = (method: 'patch' | 'put', summary: string, body: typeof PolicyInput | typeof PolicyPatch) =>
  policies.update({
    method,
    summary,
    gate: 'admin',
    body,
    // The audit entry contains the new version.
    async write(_next, { stored, body, caller, tx, audit }) {
      const updated = await updatePolicyFields(tx, stored, body, caller.principal.id)
      audit.detail.version = updated.version
      return updated
    },
  })

export const policyOperations: Operation[] = [
  policies.list({
    gate: 'admin',
    visible: () => sql.fragment`true`,
    // No index: the table is small.
    filters: {
      user_id: columnFilter(
        textFilter.describe('ID of the user to which the policies are attached'),
        id => sql.fragment`exists (select 1 from user_policies a where a.user_id = ${id} and a.policy_id = t.id)`,
      ),
      name: containsFilter('name'),
    },
  }),
  policies.create({
    gate: 'admin',
    body: PolicyInput,
    validate: ({ body }) => void policyDocumentProblems(body.document),
    make({ body: { name = null, description = null, document }, caller, tx }) {
      const policy = { id: newId(policyKind.prefix), name, description, document: policyDocumentProblems(document) }
      return insertPolicy(tx, { ...policy, by: caller.principal.id })
    },
  }),
  policies.get({ gate: 'admin' }),
  updateOperation('put', 'Replace a policy', PolicyInput),
  updateOperation('patch', 'Update a policy', PolicyPatch),
  itemOperation(policyKind, {
    ...getOptions,
    id: 'listPolicyVersions',
    path: '/policies/{policy_id}/versions',
    summary: 'List policy versions',
    description: 'Returns the versions newest first. Every change creates one.',
    paged: true,
    answers: { 200: pageOf(PolicyVersion) },
    run: ({ resource, db, page }) => listPolicyVersions(db, page, resource.id),
  }),
  itemOperation(policyKind, {
    ...getOptions,
    id: 'comparePolicyVersions',
    path: '/policies/{policy_id}/versions/compare',
    summary: 'Compare policy versions',
    description: 'Returns the added, removed and changed fields by path.',
    query: z.object({
      from: versionQuery.describe('Base version. Default the version before the current one.'),
      to: versionQuery.describe('Version to compare. Default the current version.'),
    }),
    answers: { 200: Comparison },
    run: ({ resource, db, query }) => {
      const { from = Math.max(1, resource.version - 1), to = resource.version } = query
      return comparePolicyVersions(db, resource.id, from, to)
    },
  }),
  itemOperation(policyKind, {
    ...getOptions,
    id: 'getPolicyVersion',
    path: '/policies/{policy_id}/versions/{version}',
    summary: 'Get a policy version',
    description: 'Returns the document of the version and its author.',
    answers: { 200: PolicyVersion },
    run: ({ resource, params, db }) => policyVersion(db, resource.id, versionNumber(params.version)),
  }),
  policies.action('restore', {
    id: 'restorePolicyVersion',
    path: '/policies/{policy_id}/versions/{version}/restore',
    summary: 'Restore a policy version',
    description: 'Writes the version as the next one. The restored document is validated like a new write.',
    action: 'policies:UpdatePolicy',
    gate: 'admin',
    answers: { 200: Policy },
    async run({ resource: { id }, params, caller, tx, audit }) {
      const version = await policyVersion(tx, id, versionNumber(params.version))
      const stored = await policyKind.lock(tx, id)
      const restored = await updatePolicyFields(tx, stored, policyFields(version), caller.principal.id)
      audit.detail.version = restored.version
      return policyKind.present(restored)
    },
  }),
  itemOperation(policyKind, {
    ...getOptions,
    id: 'listPolicyAttachments',
    path: '/policies/{policy_id}/attachments',
    summary: 'List policy attachments',
    description:
      'Returns the users, keys and other resources with the policy. It must be detached from all of them before it can be deleted.',
    paged: true,
    timed: false,
    answers: { 200: pageOf(PolicyAttachment) },
    run: ({ resource, services, db, page }) => listAttachments(services, db, page, resource.id),
  }),
  operation({
    id: 'simulatePolicies',
    method: 'post',
    path: '/policies/simulate',
    summary: 'Simulate the decision on a request',
    description:
      'Returns whether a request of a user or key would be allowed or denied, with the statement that determined it. Nothing is executed or recorded against the principal.',
    tag: 'Policies',
    action: 'policies:GetPolicy',
    gate: 'owner',
    about: policyKind,
    reads: true,
    body: SimulationInput,
    answers: { 200: Simulation },
    raises: ['FORBIDDEN', 'RESOURCE_NOT_FOUND'],
    run: ({ services, caller, body }) => simulatePolicies(services, caller, body),
  }),
  policies.remove({
    summary: 'Delete a policy',
    description: 'Fails if the policy is attached; the error lists its attachments.',
    gate: 'admin',
    raises: ['POLICY_HAS_DEPENDENTS'],
    check: (row, { services, tx }) => requireUnattached(services, tx, row),
  }),
  itemOperation(userKind, {
    id: 'listUserPolicies',
    method: 'get',
    path: '/users/{user_id}/policies',
    summary: 'List user policies',
    description:
      'Returns the policies in the order of attachment. A Deny of any of them overrides every Allow. Refused for credentials that are bound to a project, and for keys with policies.',
    tag: 'Policies',
    action: 'users:GetUser',
    gate: 'owner',
    admit: ownPoliciesOrAdmin,
    paged: true,
    timed: false,
    answers: { 200: pageOf(Policy) },
    run: ({ resource, db, page }) => listUserPolicies(db, page, resource.id),
  }),
  itemOperation(userKind, {
    ...attachOptions,
    id: 'setUserPolicies',
    method: 'put',
    path: '/users/{user_id}/policies',
    summary: 'Replace user policies',
    description: 'Replaces all attached policies. Applies from the next request on.',
    body: UserPoliciesInput,
    raises: ['POLICY_NOT_FOUND'],
    run: ({ resource, body, tx }) => setUserPolicies(tx, resource.id, body.policy_ids),
  }),
  itemOperation(userKind, {
    ...attachOptions,
    id: 'attachUserPolicy',
    command: ['users', 'policies', 'attach'],
    method: 'post',
    path: '/users/{user_id}/policies/{policy_id}',
    summary: 'Attach a policy to a user',
    description:
      'Applies from the next request of the user and its keys on. A policy that is already attached keeps its position.',
    run: ({ resource, params, tx }) => attachPolicy(tx, resource.id, params.policy_id),
  }),
  itemOperation(userKind, {
    ...attachOptions,
    id: 'detachUserPolicy',
    command: ['users', 'policies', 'detach'],
    method: 'delete',
    path: '/users/{user_id}/policies/{policy_id}',
    summary: 'Detach a policy from a user',
    description: 'Applies from the next request of the user and its keys on. The policy itself is not deleted.',
    run: ({ resource, params, tx }) => detachPolicy(tx, resource.id, params.policy_id),
  }),
]
