import { documentOperations } from './content/documents/operations.ts'
import { embeddingOperations } from './content/embeddings/operations.ts'
import { fileOperations } from './content/files/operations.ts'
import { ingestionOperations } from './content/ingestion/operations.ts'
import { knowledgeOperations } from './content/knowledge/operations.ts'
import { ingestionRuleOperations } from './content/rules/operations.ts'
import { metadataSchemaOperations } from './content/schemas/operations.ts'
import { auditOperations } from './control/audit/operations.ts'
import { eventOperations } from './control/events/operations.ts'
import { quotaOperations } from './control/quotas/operations.ts'
import { webhookOperations } from './control/webhooks/operations.ts'
import { actorOperations } from './conversation/actors/operations.ts'
import { conversationOperations } from './conversation/conversations/operations.ts'
import { sessionOperations } from './conversation/sessions/operations.ts'
import type { Operation } from './core/api/operation.ts'
import { agentOperations } from './execution/agents/operations.ts'
import { generationOperations, traceOperations } from './execution/generations/operations.ts'
import { aiProviderOperations } from './execution/providers/operations.ts'
import { keyOperations } from './identity/keys/operations.ts'
import { permissionOperations } from './identity/permissions.ts'
import { policyOperations } from './identity/policies/operations.ts'
import { projectOperations } from './identity/projects/operations.ts'
import { secretOperations } from './identity/secrets/operations.ts'
import { userOperations } from './identity/users/operations.ts'

/** The table of contents: every module's operations, in reading order. An operation that is not here does not exist. */
export const operations: readonly Operation[] = [
  ...userOperations,
  ...policyOperations,
  ...permissionOperations,
  ...projectOperations,
  ...keyOperations,
  ...secretOperations,
  ...quotaOperations,
  ...auditOperations,
  ...eventOperations,
  ...webhookOperations,
  ...fileOperations,
  ...documentOperations,
  ...ingestionOperations,
  ...ingestionRuleOperations,
  ...embeddingOperations,
  ...knowledgeOperations,
  ...metadataSchemaOperations,
  ...generationOperations,
  ...traceOperations,
  ...actorOperations,
  ...conversationOperations,
  ...sessionOperations,
  ...aiProviderOperations,
  ...agentOperations,
]
