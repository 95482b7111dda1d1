import { runSettings, runWaitSettings } from './automation/orchestrations/runs/settings.ts'
import { playbookExportSettings } from './automation/playbooks/exports/settings.ts'
import { triggerSettings } from './automation/triggers/settings.ts'
import { taskSettings } from './automation/workflows/tasks/settings.ts'
import { documentSettings } from './content/documents/settings.ts'
import { extractSettings } from './content/extract/settings.ts'
import { actorFileSettings, fileSettings } from './content/files/settings.ts'
import { indexSettings, ollamaSettings } from './content/index/settings.ts'
import { ingestionSettings } from './content/ingestion/settings.ts'
import { converterSettings } from './content/ingestion-rules/settings.ts'
import { knowledgeSettings } from './content/knowledge/settings.ts'
import { storageSettings } from './content/storage/settings.ts'
import { activitySettings } from './control/activity/settings.ts'
import { auditSettings } from './control/audit/settings.ts'
import { eventSettings } from './control/events/settings.ts'
import { retentionSettings } from './control/retention/settings.ts'
import { embeddingPriceSettings, usageSettings } from './control/usage/settings.ts'
import { webhookEgressSettings, webhookSettings } from './control/webhooks/settings.ts'
import { actorSettings } from './conversation/actors/settings.ts'
import { conversationSettings } from './conversation/dialog/settings.ts'
import { sessionSettings, streamSettings } from './conversation/sessions/settings.ts'
import { apiSettings } from './core/api/settings.ts'
import type { SettingsDeclaration } from './core/base/setting.ts'
import { faultSettings, processSettings, telemetrySettings } from './core/base/settings.ts'
import { databaseSettings } from './core/db/settings.ts'
import { docsSettings } from './core/docs/settings.ts'
import { httpSettings, uploadSettings } from './core/http/settings.ts'
import { idempotencySettings } from './core/invoke/settings.ts'
import { egressSettings } from './core/net/settings.ts'
import { migrationSettings, queueSettings } from './core/queues/settings.ts'
import { encryptionSettings } from './core/secrets/settings.ts'
import { threadSettings } from './core/threads/settings.ts'
import { workerSettings } from './core/work/settings.ts'
import { writeSettings } from './core/writes/settings.ts'
import { datasetSettings } from './evaluation/datasets/settings.ts'
import { evalSettings } from './evaluation/eval-runs/settings.ts'
import { agentSettings } from './execution/agents/settings.ts'
import { approvalSettings } from './execution/approvals/settings.ts'
import { chainSettings } from './execution/chains/settings.ts'
import { deciderSettings } from './execution/deciders/settings.ts'
import { generationSettings, recallSettings } from './execution/generations/settings.ts'
import { guardrailContextSettings, guardrailSettings } from './execution/guardrails/settings.ts'
import { memoryRuleSettings } from './execution/memory-rules/settings.ts'
import { credentialSettings, providerSettings } from './execution/providers/settings.ts'
import { shareSettings } from './execution/shares/settings.ts'
import { toolSettings } from './execution/tools/settings.ts'
import { formationSettings } from './formations/settings.ts'
import { companySignInSettings } from './identity/company-sign-in/settings.ts'
import { consoleSettings } from './identity/console/settings.ts'
import { keySettings } from './identity/keys/settings.ts'
import { oauthSettings } from './identity/oauth/settings.ts'
import { secretStoreSettings } from './identity/secrets/settings.ts'
import { tokenSettings } from './identity/tokens/settings.ts'
import { userSettings } from './identity/users/settings.ts'
import { mcpSettings } from './mcp/settings.ts'
import { a2aSettings } from './protocols/a2a/settings.ts'
import { aguiSettings } from './protocols/ag-ui/settings.ts'
import { openaiSettings } from './protocols/openai/settings.ts'
import { uiSettings } from './protocols/ui/settings.ts'

/** The settings of all modules, in the order of docs/operations.md, by group. This file loads no module. */
export const settingDeclarations: readonly SettingsDeclaration[] = [
  // process
  processSettings,
  docsSettings,
  consoleSettings,
  apiSettings,
  httpSettings,
  actorSettings,
  actorFileSettings,
  idempotencySettings,
  streamSettings,
  threadSettings,
  runWaitSettings,
  // openai
  openaiSettings,
  // protocols
  aguiSettings,
  uiSettings,
  a2aSettings,
  // mcp
  mcpSettings,
  // database
  databaseSettings,
  migrationSettings,
  // identity
  tokenSettings,
  userSettings,
  encryptionSettings,
  secretStoreSettings,
  keySettings,
  companySignInSettings,
  oauthSettings,
  credentialSettings,
  // egress
  egressSettings,
  webhookEgressSettings,
  toolSettings,
  guardrailContextSettings,
  shareSettings,
  // workers
  workerSettings,
  queueSettings,
  conversationSettings,
  sessionSettings,
  generationSettings,
  deciderSettings,
  datasetSettings,
  evalSettings,
  memoryRuleSettings,
  chainSettings,
  runSettings,
  triggerSettings,
  taskSettings,
  playbookExportSettings,
  agentSettings,
  providerSettings,
  ollamaSettings,
  faultSettings,
  // control
  writeSettings,
  eventSettings,
  webhookSettings,
  approvalSettings,
  guardrailSettings,
  usageSettings,
  auditSettings,
  activitySettings,
  retentionSettings,
  // formations
  formationSettings,
  // content
  storageSettings,
  fileSettings,
  uploadSettings,
  documentSettings,
  ingestionSettings,
  indexSettings,
  converterSettings,
  extractSettings,
  embeddingPriceSettings,
  knowledgeSettings,
  recallSettings,
  // telemetry
  telemetrySettings,
]
