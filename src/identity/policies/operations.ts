import { z } from 'zod'
import { Comparison } from '../../core/api/compare.ts'
import { columnFilter, containsFilter } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { pageOf, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { versionNumber, versionQuery } from '../../core/api/versions.ts'
import { sql } from '../../core/db/sql.ts'
import { userKind } from '../users/model.ts'
import { ownOrAdmin } from '../users/operations.ts'
import { attachPolicy, detachPolicy, setUserPolicies } from './attach.ts'
import { changePolicy, comparePolicyVersions, policyFields, policyVersion, refuseAttached } from './change.ts'
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

const policies = resource(policyKind, { path: '/policies', tag: 'Policies' })

const byAdmins = { tag: 'Policies', gate: 'admin' } as const
const reading = { ...byAdmins, method: 'get', action: 'policies:GetPolicy' } as const
const attaching = { ...byAdmins, action: 'users:AttachUserPolicies', answers: { 204: null } } as const

const change = (method: 'patch' | 'put', summary: string, body: typeof PolicyInput | typeof PolicyPatch) =>
  policies.update({
    method,
    summary,
    gate: 'admin',
    body,
    // The audit entry names the version that was made.
    async write(_next, { stored, body, caller, tx, audit }) {
      const changed = await changePolicy(tx, stored, body, caller.principal.id)
      audit.detail.version = changed.version
      return changed
    },
  })

export const policyOperations: Operation[] = [
  policies.list({
    gate: 'admin',
    visible: () => sql.fragment`true`,
    // The table is small and read as a whole.
    filters: {
      user_id: columnFilter(
        textFilter.describe('Policies attached to this user'),
        id => sql.fragment`exists (select 1 from user_policies a where a.user_id = ${id} and a.policy_id = t.id)`,
      ),
      name: containsFilter('name'),
    },
  }),
  policies.create({
    gate: 'admin',
    body: PolicyInput,
    make({ body: { name = null, description = null, document }, caller, tx }) {
      const policy = { id: newId(policyKind.prefix), name, description, document: policyDocumentProblems(document) }
      return insertPolicy(tx, { ...policy, by: caller.principal.id })
    },
  }),
  policies.get({ gate: 'admin' }),
  change('put', 'Replace the document of a policy', PolicyInput),
  change('patch', 'Change a policy', PolicyPatch),
  itemOperation(policyKind, {
    ...reading,
    id: 'listPolicyVersions',
    path: '/policies/{policy_id}/versions',
    summary: 'List the versions of a policy, newest first',
    description: 'Every change of the document has made one.',
    paged: true,
    answers: { 200: pageOf(PolicyVersion) },
    run: ({ resource, db, page }) => listPolicyVersions(db, page, resource.id),
  }),
  itemOperation(policyKind, {
    ...reading,
    id: 'comparePolicyVersions',
    path: '/policies/{policy_id}/versions/compare',
    summary: 'Compare two versions of a policy',
    description: 'Lists what was added, removed and changed from one to the other, by the paths of fields.',
    query: z.object({
      from: versionQuery.describe('Default: the version before the current one'),
      to: versionQuery.describe('Default: the current version'),
    }),
    answers: { 200: Comparison },
    run: ({ resource, db, query }) => {
      const { from = Math.max(1, resource.version - 1), to = resource.version } = query
      return comparePolicyVersions(db, resource.id, from, to)
    },
  }),
  itemOperation(policyKind, {
    ...reading,
    id: 'getPolicyVersion',
    path: '/policies/{policy_id}/versions/{version}',
    summary: 'Read a version of a policy',
    description: 'The document as it was then, with who wrote it.',
    answers: { 200: PolicyVersion },
    run: ({ resource, params, db }) => policyVersion(db, resource.id, versionNumber(params.version)),
  }),
  policies.action('restore', {
    id: 'restorePolicyVersion',
    path: '/policies/{policy_id}/versions/{version}/restore',
    summary: 'Write an earlier version of a policy as the next one',
    description: 'Its document must still be one that could be written today.',
    action: 'policies:UpdatePolicy',
    gate: 'admin',
    answers: { 200: Policy },
    async run({ resource: { id }, params, caller, tx, audit }) {
      const version = await policyVersion(tx, id, versionNumber(params.version))
      const stored = await policyKind.lock(tx, id)
      const restored = await changePolicy(tx, stored, policyFields(version), caller.principal.id)
      audit.detail.version = restored.version
      return policyKind.present(restored)
    },
  }),
  itemOperation(policyKind, {
    ...reading,
    id: 'listPolicyAttachments',
    path: '/policies/{policy_id}/attachments',
    summary: 'List what a policy is attached to',
    description: 'Users and keys that have the policy, so that it can be detached before it is deleted.',
    paged: true,
    timed: false,
    answers: { 200: pageOf(PolicyAttachment) },
    run: ({ resource, db, page }) => listAttachments(db, page, resource.id),
  }),
  operation({
    id: 'simulatePolicies',
    method: 'post',
    path: '/policies/simulate',
    summary: 'Explain how a request of a user or key would be decided',
    description:
      'Nothing is done and nothing is recorded against the principal: the answer is the decision with the statement that made it.',
    tag: 'Policies',
    action: 'policies:GetPolicy',
    gate: 'owner',
    about: policyKind,
    transaction: false,
    body: SimulationInput,
    answers: { 200: Simulation },
    raises: ['FORBIDDEN', 'RESOURCE_NOT_FOUND'],
    run: ({ services, caller, body }) => simulatePolicies(services, caller, body),
  }),
  policies.remove({
    summary: 'Delete a policy that is attached to nothing',
    description: 'A policy that is attached is refused with what it is attached to.',
    gate: 'admin',
    raises: ['POLICY_HAS_DEPENDENTS'],
    check: (row, { tx }) => refuseAttached(tx, row),
  }),
  itemOperation(userKind, {
    id: 'listUserPolicies',
    method: 'get',
    path: '/users/{user_id}/policies',
    summary: 'List the policies of a user',
    description: 'In the order in which they were attached; what any of them denies is denied.',
    tag: 'Policies',
    action: 'users:GetUser',
    gate: 'owner',
    admit: ownOrAdmin('users:GetUser'),
    paged: true,
    timed: false,
    answers: { 200: pageOf(Policy) },
    run: ({ resource, db, page }) => listUserPolicies(db, page, resource.id),
  }),
  itemOperation(userKind, {
    ...attaching,
    id: 'setUserPolicies',
    method: 'put',
    path: '/users/{user_id}/policies',
    summary: 'Replace the policies of a user',
    description: 'The list given takes the place of all that were attached before, and binds at the next request.',
    body: UserPoliciesInput,
    raises: ['POLICY_NOT_FOUND'],
    run: ({ resource, body, tx }) => setUserPolicies(tx, resource.id, body.policy_ids),
  }),
  itemOperation(userKind, {
    ...attaching,
    id: 'attachUserPolicy',
    command: ['users', 'policies', 'attach'],
    method: 'post',
    path: '/users/{user_id}/policies/{policy_id}',
    summary: 'Attach a policy to a user',
    description:
      'Binds at the next request of the user and its keys. A policy that is attached already stays where it is.',
    run: ({ resource, params, tx }) => attachPolicy(tx, resource.id, params.policy_id),
  }),
  itemOperation(userKind, {
    ...attaching,
    id: 'detachUserPolicy',
    command: ['users', 'policies', 'detach'],
    method: 'delete',
    path: '/users/{user_id}/policies/{policy_id}',
    summary: 'Detach a policy from a user',
    description: 'Binds at the next request of the user and its keys; the policy itself stays.',
    run: ({ resource, params, tx }) => detachPolicy(tx, resource.id, params.policy_id),
  }),
]
