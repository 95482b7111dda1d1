import {
  aggregateUsage,
  createAgentGeneration,
  exportTemplate,
  getOrchestrationQueueStats,
  getProject,
  listActors,
  listAgents,
  listApprovals,
  listAuditEntries,
  listCases,
  listChains,
  listChats,
  listConversations,
  listDatasets,
  listDeciders,
  listDocuments,
  listEvals,
  listEvents,
  listExceptions,
  listFeedback,
  listFiles,
  listFormations,
  listGenerations,
  listGuardrails,
  listIngestionRules,
  listMemoryStores,
  listMetadataSchemas,
  listModelRoutes,
  listOauthGrants,
  listOrchestrations,
  listPlaybookExecutions,
  listPlaybooks,
  listPolicies,
  listPreparedReplies,
  listProjectKeys,
  listRuns,
  listSecrets,
  listSessions,
  listTasks,
  listTools,
  listTriggers,
  listUsers,
  listWebhooks,
  listWorkflows,
  searchKnowledge,
} from '@muster/client/operations'
import {
  IconAlarm,
  IconBolt,
  IconBrain,
  IconBriefcase,
  IconChartBar,
  IconCopy,
  IconDatabase,
  IconFileImport,
  IconFileText,
  IconFolder,
  IconGavel,
  IconHierarchy2,
  IconHistory,
  IconInbox,
  IconKey,
  IconLayoutDashboard,
  IconLayoutKanban,
  IconLink,
  IconListCheck,
  IconListDetails,
  IconLock,
  IconMessage2,
  IconMessageBolt,
  IconMessageChatbot,
  IconMessages,
  IconPackages,
  IconPlayerPlay,
  IconPlayerTrackNext,
  IconPlugConnected,
  IconRobot,
  IconRocket,
  IconRoute,
  IconSettings,
  IconShieldCheck,
  IconStack2,
  IconTestPipe,
  IconThumbUp,
  IconTimeline,
  IconTool,
  IconUserCircle,
  IconUsers,
  IconWebhook,
  IconZoomQuestion,
  type TablerIcon,
} from '@tabler/icons-react'
import type { Operation, Permissions } from '#projects.ts'
import * as strings from '#strings.ts'

type NavigationEntry = {
  name: string
  path: string
  icon: TablerIcon
  /** The view is offered to those who may call this operation, */
  operation: Operation
  /** or one of these. */
  otherOperations?: Operation[]
}

/** Whether a user may see a view; undefined while that is not known. */
export function maySee(
  { operation, otherOperations = [] }: NavigationEntry,
  isAllowed: Permissions,
): boolean | undefined {
  return [operation, ...otherOperations].map(isAllowed).find(allowed => allowed !== false) ?? isAllowed(operation)
}

const texts = strings.nav

/** Views of a project, by purpose. */
export const GROUPS: { name: string; views: NavigationEntry[] }[] = [
  {
    name: texts.groups.project,
    views: [
      { name: texts.start, path: 'start', icon: IconRocket, operation: getProject },
      { name: texts.overview, path: 'overview', icon: IconLayoutDashboard, operation: listGenerations },
      {
        name: texts.inbox,
        path: 'inbox',
        icon: IconInbox,
        operation: listApprovals,
        otherOperations: [listTasks, listPlaybookExecutions, listRuns, listExceptions],
      },
    ],
  },
  {
    name: texts.groups.build,
    views: [
      { name: texts.agents, path: 'agents', icon: IconRobot, operation: listAgents },
      { name: texts.playground, path: 'playground', icon: IconPlayerPlay, operation: createAgentGeneration },
      { name: texts.tools, path: 'tools', icon: IconTool, operation: listTools },
      { name: texts.guardrails, path: 'guardrails', icon: IconShieldCheck, operation: listGuardrails },
      { name: texts.deciders, path: 'deciders', icon: IconGavel, operation: listDeciders },
      { name: texts.chats, path: 'chats', icon: IconMessageChatbot, operation: listChats },
      { name: texts.modelRoutes, path: 'model-routes', icon: IconRoute, operation: listModelRoutes },
    ],
  },
  {
    name: texts.groups.knowledge,
    views: [
      { name: texts.files, path: 'files', icon: IconFolder, operation: listFiles },
      { name: texts.documents, path: 'documents', icon: IconFileText, operation: listDocuments },
      { name: texts.search, path: 'search', icon: IconZoomQuestion, operation: searchKnowledge },
      { name: texts.memory, path: 'memory', icon: IconBrain, operation: listMemoryStores },
      { name: texts.ingestionRules, path: 'ingestion-rules', icon: IconFileImport, operation: listIngestionRules },
      { name: texts.metadataSchemas, path: 'metadata-schemas', icon: IconListDetails, operation: listMetadataSchemas },
    ],
  },
  {
    name: texts.groups.conversations,
    views: [
      { name: texts.sessions, path: 'sessions', icon: IconMessages, operation: listSessions },
      {
        name: texts.conversations,
        path: 'conversations',
        icon: IconMessage2,
        operation: listConversations,
      },
      {
        name: strings.preparedReplies.title,
        path: 'prepared-replies',
        icon: IconMessageBolt,
        operation: listPreparedReplies,
      },
      { name: strings.endUsers.title, path: 'actors', icon: IconUserCircle, operation: listActors },
      { name: texts.traces, path: 'traces', icon: IconTimeline, operation: listGenerations },
      { name: texts.chains, path: 'chains', icon: IconLink, operation: listChains },
    ],
  },
  {
    name: texts.groups.evaluate,
    views: [
      { name: texts.datasets, path: 'datasets', icon: IconDatabase, operation: listDatasets },
      { name: texts.evals, path: 'evals', icon: IconTestPipe, operation: listEvals },
      { name: texts.feedback, path: 'feedback', icon: IconThumbUp, operation: listFeedback },
    ],
  },
  {
    name: texts.groups.automate,
    views: [
      {
        name: texts.orchestrations,
        path: 'orchestrations',
        icon: IconHierarchy2,
        operation: listOrchestrations,
      },
      { name: texts.runs, path: 'runs', icon: IconPlayerTrackNext, operation: listRuns },
      { name: texts.workflows, path: 'workflows', icon: IconLayoutKanban, operation: listWorkflows },
      { name: texts.cases, path: 'cases', icon: IconBriefcase, operation: listCases },
      { name: texts.playbooks, path: 'playbooks', icon: IconListCheck, operation: listPlaybooks },
      { name: texts.triggers, path: 'triggers', icon: IconAlarm, operation: listTriggers },
    ],
  },
  {
    name: texts.groups.operate,
    views: [
      { name: texts.usage, path: 'usage', icon: IconChartBar, operation: aggregateUsage },
      { name: texts.webhooks, path: 'webhooks', icon: IconWebhook, operation: listWebhooks },
      { name: texts.events, path: 'events', icon: IconBolt, operation: listEvents },
      { name: texts.formations, path: 'formations', icon: IconPackages, operation: listFormations },
      { name: texts.projectCopy, path: 'copy', icon: IconCopy, operation: exportTemplate },
      { name: texts.queue, path: 'queue', icon: IconStack2, operation: getOrchestrationQueueStats },
      { name: texts.audit, path: 'audit', icon: IconHistory, operation: listAuditEntries },
      { name: texts.settings, path: 'settings', icon: IconSettings, operation: getProject },
    ],
  },
  {
    name: texts.groups.access,
    views: [
      { name: texts.keys, path: 'keys', icon: IconKey, operation: listProjectKeys },
      { name: texts.secrets, path: 'secrets', icon: IconLock, operation: listSecrets },
      { name: texts.policies, path: 'policies', icon: IconShieldCheck, operation: listPolicies },
      { name: texts.users, path: 'users', icon: IconUsers, operation: listUsers },
      { name: texts.apps, path: 'apps', icon: IconPlugConnected, operation: listOauthGrants },
    ],
  },
]

/** All views of a project. */
export const NAVIGATION: NavigationEntry[] = GROUPS.flatMap(({ views }) => views)
