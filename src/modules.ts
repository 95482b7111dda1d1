import cases from './automation/cases/module.ts'
import orchestrations from './automation/orchestrations/definition/module.ts'
import runs from './automation/orchestrations/runs/module.ts'
import playbooks from './automation/playbooks/definition/module.ts'
import playbookExecutions from './automation/playbooks/executions/module.ts'
import exports from './automation/playbooks/exports/module.ts'
import triggers from './automation/triggers/module.ts'
import workflows from './automation/workflows/definition/module.ts'
import tasks from './automation/workflows/tasks/module.ts'
import documents from './content/documents/module.ts'
import files from './content/files/module.ts'
import embeddings from './content/index/module.ts'
import ingestion from './content/ingestion/module.ts'
import ingestionRules from './content/ingestion-rules/module.ts'
import knowledge from './content/knowledge/module.ts'
import metadataSchemas from './content/schemas/module.ts'
import activity from './control/activity/module.ts'
import audit from './control/audit/module.ts'
import events from './control/events/module.ts'
import exceptions from './control/exceptions/module.ts'
import quotas from './control/quotas/module.ts'
import retention from './control/retention/module.ts'
import storage from './control/storage/module.ts'
import system from './control/system/module.ts'
import telemetry from './control/telemetry/module.ts'
import usage from './control/usage/module.ts'
import webhooks from './control/webhooks/module.ts'
import actors from './conversation/actors/module.ts'
import chats from './conversation/chats/module.ts'
import conversations from './conversation/dialog/module.ts'
import feedback from './conversation/feedback/module.ts'
import preparedReplies from './conversation/prepared-replies/module.ts'
import sessionNotes from './conversation/session-notes/module.ts'
import core from './core/modules/core.ts'
import type { Module } from './core/modules/module.ts'
import datasets from './evaluation/datasets/module.ts'
import evalRuns from './evaluation/eval-runs/module.ts'
import evals from './evaluation/evals/module.ts'
import agents from './execution/agents/module.ts'
import approvals from './execution/approvals/module.ts'
import chains from './execution/chains/module.ts'
import deciders from './execution/deciders/module.ts'
import generations from './execution/generations/module.ts'
import guardrails from './execution/guardrails/module.ts'
import memoryRules from './execution/memory-rules/module.ts'
import modelRoutes from './execution/model-routes/module.ts'
import providers from './execution/providers/module.ts'
import shares from './execution/shares/module.ts'
import tools from './execution/tools/module.ts'
import formations from './formations/module.ts'
import companySignIn from './identity/company-sign-in/module.ts'
import keys from './identity/keys/module.ts'
import oauth from './identity/oauth/module.ts'
import policies from './identity/policies/module.ts'
import projects from './identity/projects/module.ts'
import savedViews from './identity/saved-views/module.ts'
import secrets from './identity/secrets/module.ts'
import users from './identity/users/module.ts'
import mcp from './mcp/module.ts'
import memory from './memory/module.ts'
import a2a from './protocols/a2a/module.ts'
import agUi from './protocols/ag-ui/module.ts'
import openai from './protocols/openai/module.ts'
import ui from './protocols/ui/module.ts'

/** All modules of a process, in the order of the areas, which is also the order of the API. */
export const modules: readonly Module[] = [
  core,
  users,
  policies,
  companySignIn,
  projects,
  keys,
  oauth,
  secrets,
  savedViews,
  usage,
  quotas,
  audit,
  events,
  activity,
  exceptions,
  webhooks,
  telemetry,
  retention,
  storage,
  system,
  metadataSchemas,
  files,
  documents,
  ingestionRules,
  ingestion,
  embeddings,
  knowledge,
  memory,
  providers,
  modelRoutes,
  tools,
  guardrails,
  agents,
  generations,
  chains,
  approvals,
  shares,
  deciders,
  memoryRules,
  chats,
  actors,
  conversations,
  feedback,
  sessionNotes,
  preparedReplies,
  orchestrations,
  runs,
  triggers,
  workflows,
  tasks,
  cases,
  exports,
  playbooks,
  playbookExecutions,
  datasets,
  evals,
  evalRuns,
  formations,
  mcp,
  agUi,
  ui,
  a2a,
  openai,
]
