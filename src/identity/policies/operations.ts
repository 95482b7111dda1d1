import { z } from 'zod'
import { Comparison } from '../../core/api/compare.ts'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { pageOf, textFilter } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { users } from '../users/model.ts'
import { ownOrAdmin } from '../users/operations.ts'
import { attachPolicy, detachPolicy, setUserPolicies } from './attach.ts'
import { changePolicy, comparePolicyVersions, removePolicy, restorePolicy, versionNumber } from './change.ts'
import {
  checkDocument,
  Policy,
  PolicyAttachment,
  PolicyInput,
  PolicyPatch,
  type PolicyRow,
  PolicyVersion,
  policies,
  presentPolicy,
  UserPoliciesInput,
} from './model.ts'
import { Simulation, SimulationInput, simulate } from './simulate.ts'
import {
  findPolicyVersions,
  insertPolicy,
  listAttachments,
  listPolicies,
  listPolicyVersions,
  listUserPolicies,
} from './store.ts'

const tag = 'Policies'

const versionQuery = z
  .string()
  .regex(/^[1-9]\d{0,8}$/, 'must be a positive integer')
  .transform(Number)
  .optional()

/** Changes a policy; the entry in the audit log names the version it made. */
async function change(
  { resource, caller, tx, audit }: Pick<Context<unknown, unknown, PolicyRow>, 'resource' | 'caller' | 'tx' | 'audit'>,
  body: Parameters<typeof changePolicy>[2],
) {
  const changed = await changePolicy(tx, resource.id, body, caller.principal.id)
  audit.detail.version = changed.version
  return presentPolicy(changed)
}

export const policyOperations: Operation[] = [
  operation({
    id: 'listPolicies',
    method: 'get',
    path: '/policies',
    summary: 'List policies',
    tag,
    action: 'policies:ListPolicies',
    gate: 'admin',
    lists: policies,
    query: z.object({ user_id: textFilter, name: textFilter }),
    answers: { 200: pageOf(Policy) },
    run: ({ db, page, query }) => listPolicies(db, page, query),
  }),
  operation({
    id: 'createPolicy',
    method: 'post',
    path: '/policies',
    summary: 'Create a policy',
    tag,
    action: 'policies:CreatePolicy',
    gate: 'admin',
    creates: policies,
    body: PolicyInput,
    answers: { 201: Policy },
    async run({ body, caller, tx }) {
      const document = checkDocument(body.document)
      const { name = null, description = null } = body
      const by = caller.principal.id
      return presentPolicy(await insertPolicy(tx, { id: newId('pol'), name, description, document, by }))
    },
  }),
  itemOperation(policies, {
    id: 'getPolicy',
    method: 'get',
    path: '/policies/{policy_id}',
    summary: 'Read a policy',
    tag,
    action: 'policies:GetPolicy',
    gate: 'admin',
    answers: { 200: Policy },
    run: async ({ resource }) => presentPolicy(resource),
  }),
  itemOperation(policies, {
    id: 'replacePolicy',
    method: 'put',
    path: '/policies/{policy_id}',
    summary: 'Replace the document of a policy',
    tag,
    action: 'policies:UpdatePolicy',
    gate: 'admin',
    body: PolicyInput,
    answers: { 200: Policy },
    run: context => change(context, context.body),
  }),
  itemOperation(policies, {
    id: 'updatePolicy',
    method: 'patch',
    path: '/policies/{policy_id}',
    summary: 'Change a policy',
    tag,
    action: 'policies:UpdatePolicy',
    gate: 'admin',
    body: PolicyPatch,
    answers: { 200: Policy },
    run: context => change(context, context.body),
  }),
  itemOperation(policies, {
    id: 'listPolicyVersions',
    method: 'get',
    path: '/policies/{policy_id}/versions',
    summary: 'List the versions of a policy, newest first',
    tag,
    action: 'policies:GetPolicy',
    gate: 'admin',
    paged: true,
    answers: { 200: pageOf(PolicyVersion) },
    run: ({ resource, db, page }) => listPolicyVersions(db, page, resource.id),
  }),
  itemOperation(policies, {
    id: 'comparePolicyVersions',
    method: 'get',
    path: '/policies/{policy_id}/versions/compare',
    summary: 'Compare two versions of a policy',
    tag,
    action: 'policies:GetPolicy',
    gate: 'admin',
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
  itemOperation(policies, {
    id: 'getPolicyVersion',
    method: 'get',
    path: '/policies/{policy_id}/versions/{version}',
    summary: 'Read a version of a policy',
    tag,
    action: 'policies:GetPolicy',
    gate: 'admin',
    answers: { 200: PolicyVersion },
    async run({ resource, params, db }) {
      const number = versionNumber(params.version)
      const [version] = await findPolicyVersions(db, resource.id, [number])
      return version ?? raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id, version: number } })
    },
  }),
  itemOperation(policies, {
    id: 'restorePolicyVersion',
    method: 'post',
    path: '/policies/{policy_id}/versions/{version}/restore',
    summary: 'Write an earlier version of a policy as the next one',
    tag,
    action: 'policies:UpdatePolicy',
    gate: 'admin',
    answers: { 200: Policy },
    async run({ resource, params, caller, tx, audit }) {
      const restored = await restorePolicy(tx, resource.id, versionNumber(params.version), caller.principal.id)
      audit.detail.version = restored.version
      return presentPolicy(restored)
    },
  }),
  itemOperation(policies, {
    id: 'listPolicyAttachments',
    method: 'get',
    path: '/policies/{policy_id}/attachments',
    summary: 'List what a policy is attached to',
    tag,
    action: 'policies:GetPolicy',
    gate: 'admin',
    paged: true,
    timed: false,
    answers: { 200: pageOf(PolicyAttachment) },
    run: ({ resource, db, page }) => listAttachments(db, page, resource.id),
  }),
  operation({
    id: 'simulatePolicies',
    method: 'post',
    path: '/policies/simulate',
    summary: 'Tell how a request of a user or key would be decided',
    tag,
    action: 'policies:GetPolicy',
    gate: 'owner',
    about: policies,
    transaction: false,
    body: SimulationInput,
    answers: { 200: Simulation },
    raises: ['FORBIDDEN', 'RESOURCE_NOT_FOUND'],
    run: ({ services, caller, body }) => simulate(services, caller, body),
  }),
  itemOperation(policies, {
    id: 'deletePolicy',
    method: 'delete',
    path: '/policies/{policy_id}',
    summary: 'Delete a policy that is attached to nothing',
    tag,
    action: 'policies:DeletePolicy',
    gate: 'admin',
    answers: { 204: null },
    raises: ['POLICY_HAS_DEPENDENTS'],
    run: ({ resource, tx }) => removePolicy(tx, resource.id),
  }),
  itemOperation(users, {
    id: 'listUserPolicies',
    method: 'get',
    path: '/users/{user_id}/policies',
    summary: 'List the policies of a user',
    tag,
    action: 'users:GetUser',
    gate: 'owner',
    admit: ownOrAdmin('users:GetUser'),
    paged: true,
    timed: false,
    answers: { 200: pageOf(Policy) },
    run: ({ resource, db, page }) => listUserPolicies(db, page, resource.id),
  }),
  itemOperation(users, {
    id: 'setUserPolicies',
    method: 'put',
    path: '/users/{user_id}/policies',
    summary: 'Replace the policies of a user',
    tag,
    action: 'users:AttachUserPolicies',
    gate: 'admin',
    body: UserPoliciesInput,
    answers: { 204: null },
    raises: ['POLICY_NOT_FOUND'],
    run: ({ resource, body, tx }) => setUserPolicies(tx, resource.id, body.policy_ids),
  }),
  itemOperation(users, {
    id: 'attachUserPolicy',
    method: 'post',
    path: '/users/{user_id}/policies/{policy_id}',
    summary: 'Attach a policy to a user',
    tag,
    action: 'users:AttachUserPolicies',
    gate: 'admin',
    answers: { 204: null },
    run: ({ resource, params, tx }) => attachPolicy(tx, resource.id, params.policy_id),
  }),
  itemOperation(users, {
    id: 'detachUserPolicy',
    method: 'delete',
    path: '/users/{user_id}/policies/{policy_id}',
    summary: 'Detach a policy from a user',
    tag,
    action: 'users:AttachUserPolicies',
    gate: 'admin',
    answers: { 204: null },
    run: ({ resource, params, tx }) => detachPolicy(tx, resource.id, params.policy_id),
  }),
]
