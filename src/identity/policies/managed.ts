import { type Operation, operations } from '#core/api/operation.ts'
import type { Services } from '#core/base/services.ts'
import type { PolicyDocument, PolicyStatement } from '#core/iam/policy.ts'
import { principalsChanged } from '../principals/principals.ts'
import type { managedIds } from './model.ts'
import { putManagedPolicy } from './store.ts'

const MAX_ACTIONS = 100

/**
 * Actions of a server that offers agents, configured elsewhere, to end users: it creates and finds end users by
 * external ID and uses sessions, conversations and turns by ID. It lists nothing and reads no configuration.
 */
const RUNNER_ACTIONS = [
  ...['actors:CreateActor', 'actors:GetActor', 'actors:UpdateActor'],
  ...['sessions:CreateSession', 'sessions:GetSession', 'sessions:UpdateSession', 'sessions:SendSessionMessage'],
  ...['sessions:ListSessionMessages', 'sessions:SubmitSessionToolOutputs'],
  ...['conversations:CreateConversation', 'conversations:GetConversation', 'conversations:GenerateConversationMessage'],
  ...['agents:CreateAgentGeneration', 'generations:GetGeneration', 'generations:CancelGeneration'],
  'chats:CreateChatCompletion',
]

/** Splits actions into statements of at most 100 each. */
function allowStatements(actions: string[]): PolicyStatement[] {
  const statements: PolicyStatement[] = []
  for (let start = 0; start < actions.length; start += MAX_ACTIONS)
    statements.push({ effect: 'Allow', action: actions.slice(start, start + MAX_ACTIONS) })
  return statements
}

/** Returns the actions that only read and reveal no secret: all their routes are GET or searches. */
function readActions(operations: readonly Operation[]): string[] {
  const reads = new Map<string, boolean>()
  for (const { action, gate, method } of operations) {
    if (!action || gate !== 'policy') continue
    const [module, name] = action.split(':')
    const isRead = method === 'get' || name.startsWith('Search')
    const isRevealing = name.endsWith('Secret') && module !== 'secrets'
    reads.set(action, (reads.get(action) ?? true) && isRead && !isRevealing)
  }
  return [...reads].filter(([, isRead]) => isRead).map(([action]) => action)
}

type ManagedPolicy = { id: (typeof managedIds)[number]; name: string; description: string; document: PolicyDocument }

/** Returns the policies that ship with the deployment, for its registered actions. */
export const managedPolicies = (operations: readonly Operation[]): ManagedPolicy[] => [
  {
    id: 'pol_managed_read_only',
    name: 'Read only',
    description: 'Allows reading everything that policies control, in every project, except signing secrets',
    document: { statement: allowStatements(readActions(operations)) },
  },
  {
    id: 'pol_managed_project_admin',
    name: 'Project admin',
    description: 'Allows everything that policies control, in every project; bind a key to a project to restrict it',
    document: { statement: [{ effect: 'Allow', action: ['*'] }] },
  },
  {
    id: 'pol_managed_agent_runner',
    name: 'Agent runner',
    description:
      'Allows offering agents to end users, in every project: creates end users and uses sessions, conversations and turns by ID; lists nothing and reads no configuration, tool or secret',
    document: { statement: allowStatements(RUNNER_ACTIONS) },
  },
]

/** Updates the managed policies to the actions of the deployment, at the start of a web process. */
export async function syncManagedPolicies(services: Services): Promise<void> {
  await services.write(async tx => {
    for (const policy of managedPolicies(operations.all())) {
      const written = await putManagedPolicy(tx, policy)
      if (written) principalsChanged(tx, `policy:${policy.id}`)
    }
  })
}
