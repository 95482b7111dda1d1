import { type Operation, operations } from '../../core/api/operation.ts'
import type { PolicyDocument, PolicyStatement } from '../../core/iam/policy.ts'
import type { Services } from '../../core/process/services.ts'
import { principalsChanged } from '../principals.ts'
import type { managedIds } from './model.ts'
import { putManagedPolicy } from './store.ts'

const MAX_ACTIONS = 100

/**
 * What a server needs that puts agents which others configured in front of end users: it makes and finds an end user by an id
 * of its own, and works with sessions, conversations and turns whose ids it knows. It lists none and reads no configuration.
 */
const RUNNER_ACTIONS = [
  ...['actors:CreateActor', 'actors:GetActor', 'actors:UpdateActor'],
  ...['sessions:CreateSession', 'sessions:GetSession', 'sessions:UpdateSession', 'sessions:SendSessionMessage'],
  ...['sessions:ListSessionMessages', 'sessions:SubmitSessionToolOutputs'],
  ...['conversations:CreateConversation', 'conversations:GetConversation', 'conversations:GenerateConversationMessage'],
  ...['agents:CreateAgentGeneration', 'generations:GetGeneration', 'generations:CancelGeneration'],
  'chats:CreateChatCompletion',
]

/** Statements allow at most 100 actions each. */
function allow(actions: string[]): PolicyStatement[] {
  const statements: PolicyStatement[] = []
  for (let start = 0; start < actions.length; start += MAX_ACTIONS)
    statements.push({ effect: 'Allow', action: actions.slice(start, start + MAX_ACTIONS) })
  return statements
}

/** Actions that only read and show no secret: all their routes are GET, or they search. */
function readActions(operations: readonly Operation[]): string[] {
  const reads = new Map<string, boolean>()
  for (const { action, gate, method } of operations) {
    if (!action || gate !== 'policy') continue
    const [module, name] = action.split(':')
    const reading = method === 'get' || name.startsWith('Search')
    const revealing = name.endsWith('Secret') && module !== 'secrets'
    reads.set(action, (reads.get(action) ?? true) && reading && !revealing)
  }
  return [...reads].filter(([, reading]) => reading).map(([action]) => action)
}

type Managed = { id: (typeof managedIds)[number]; name: string; description: string; document: PolicyDocument }

/** The policies that ship with the deployment, for the actions that it has. */
export const managedPolicies = (operations: readonly Operation[]): Managed[] => [
  {
    id: 'pol_managed_read_only',
    name: 'Read only',
    description: 'Reads everything that policies open, in every project, except signing secrets',
    document: { statement: allow(readActions(operations)) },
  },
  {
    id: 'pol_managed_project_admin',
    name: 'Project admin',
    description: 'Does everything that policies open, in every project; narrow it by the binding of a key',
    document: { statement: [{ effect: 'Allow', action: ['*'] }] },
  },
  {
    id: 'pol_managed_agent_runner',
    name: 'Agent runner',
    description:
      'Puts agents in front of end users, in every project: makes end users, and works with sessions, conversations and turns by their ids; lists nothing, and reads no configuration, tool or secret',
    document: { statement: allow(RUNNER_ACTIONS) },
  },
]

/** Brings the managed policies of a deployment up to date with its actions, at the start of a web process. */
export async function syncManagedPolicies(services: Services): Promise<void> {
  await services.write(async tx => {
    for (const policy of managedPolicies(operations.all())) {
      const written = await putManagedPolicy(tx, policy)
      if (written) principalsChanged(tx, `policy:${policy.id}`)
    }
  })
}
