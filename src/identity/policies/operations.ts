import { z } from 'zod'
import { newId } from '../../core/ids.ts'
import { pageOf, textFilter } from '../../core/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/operation.ts'
import { users } from '../users/model.ts'
import { ownOrAdmin } from '../users/operations.ts'
import { attachPolicy, detachPolicy, setUserPolicies } from './attach.ts'
import { changePolicy, removePolicy } from './change.ts'
import { checkDocument, Policy, PolicyInput, PolicyPatch, policies, presentPolicy, UserPoliciesInput } from './model.ts'
import { insertPolicy, listPolicies, listUserPolicies } from './store.ts'

const tag = 'Policies'

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
    run: async ({ resource, body, caller, tx, audit }) => {
      checkDocument(body.document)
      const changed = await changePolicy(tx, resource.id, body, caller.principal.id)
      audit.detail.version = changed.version
      return presentPolicy(changed)
    },
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
    run: async ({ resource, body, caller, tx, audit }) => {
      if (body.document !== undefined) checkDocument(body.document)
      const changed = await changePolicy(tx, resource.id, body, caller.principal.id)
      audit.detail.version = changed.version
      return presentPolicy(changed)
    },
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
