import {
  IconAlarm,
  IconBolt,
  IconBrain,
  IconBriefcase,
  IconChartBar,
  IconDatabase,
  IconFileText,
  IconFolder,
  IconHierarchy2,
  IconHistory,
  IconInbox,
  IconKey,
  IconLayoutDashboard,
  IconLayoutKanban,
  IconListCheck,
  IconLock,
  IconMessage2,
  IconMessages,
  IconPackages,
  IconPlayerPlay,
  IconPlayerTrackNext,
  IconPlugConnected,
  IconRobot,
  IconRocket,
  IconSettings,
  IconShieldCheck,
  IconStack2,
  IconTestPipe,
  IconTimeline,
  IconTool,
  IconUsers,
  IconWebhook,
  IconZoomQuestion,
  type TablerIcon,
} from '@tabler/icons-react'
import * as strings from '#strings.ts'

type NavigationEntry = {
  name: string
  path: string
  icon: TablerIcon
  /** Permission without which the view is not offered. */
  action: string
  /** Permissions each of which suffices as well. */
  alsoActions?: string[]
}

/** Whether a user may see a view; undefined while that is not known. */
export function maySee(
  { action, alsoActions = [] }: NavigationEntry,
  isAllowed: (action: string) => boolean | undefined,
): boolean | undefined {
  return [action, ...alsoActions].map(isAllowed).find(allowed => allowed !== false) ?? isAllowed(action)
}

const texts = strings.nav

/** Views of a project, by what they are for. */
export const GROUPS: { name: string; views: NavigationEntry[] }[] = [
  {
    name: texts.groups.project,
    views: [
      { name: texts.start, path: 'start', icon: IconRocket, action: 'projects:GetProject' },
      { name: texts.overview, path: 'overview', icon: IconLayoutDashboard, action: 'generations:ListGenerations' },
      {
        name: texts.inbox,
        path: 'inbox',
        icon: IconInbox,
        action: 'approvals:ListApprovals',
        alsoActions: [
          'tasks:ListTasks',
          'playbooks:ListExecutions',
          'orchestrations:ListRuns',
          'exceptions:ListExceptions',
        ],
      },
    ],
  },
  {
    name: texts.groups.build,
    views: [
      { name: texts.agents, path: 'agents', icon: IconRobot, action: 'agents:ListAgents' },
      { name: texts.playground, path: 'playground', icon: IconPlayerPlay, action: 'agents:CreateAgentGeneration' },
      { name: texts.tools, path: 'tools', icon: IconTool, action: 'tools:ListTools' },
      { name: texts.guardrails, path: 'guardrails', icon: IconShieldCheck, action: 'guardrails:ListGuardrails' },
      { name: texts.datasets, path: 'datasets', icon: IconDatabase, action: 'evaluations:ListDatasets' },
      { name: texts.evals, path: 'evals', icon: IconTestPipe, action: 'evaluations:ListEvals' },
    ],
  },
  {
    name: texts.groups.knowledge,
    views: [
      { name: texts.files, path: 'files', icon: IconFolder, action: 'files:GetFile' },
      { name: texts.documents, path: 'documents', icon: IconFileText, action: 'documents:ListDocuments' },
      { name: texts.search, path: 'search', icon: IconZoomQuestion, action: 'knowledge:SearchKnowledge' },
      { name: texts.memory, path: 'memory', icon: IconBrain, action: 'memories:ListMemoryStores' },
    ],
  },
  {
    name: texts.groups.conversations,
    views: [
      { name: texts.sessions, path: 'sessions', icon: IconMessages, action: 'sessions:ListSessions' },
      {
        name: texts.conversations,
        path: 'conversations',
        icon: IconMessage2,
        action: 'conversations:ListConversations',
      },
      { name: texts.traces, path: 'traces', icon: IconTimeline, action: 'generations:ListGenerations' },
    ],
  },
  {
    name: texts.groups.automate,
    views: [
      {
        name: texts.orchestrations,
        path: 'orchestrations',
        icon: IconHierarchy2,
        action: 'orchestrations:ListOrchestrations',
      },
      { name: texts.runs, path: 'runs', icon: IconPlayerTrackNext, action: 'orchestrations:ListRuns' },
      { name: texts.workflows, path: 'workflows', icon: IconLayoutKanban, action: 'workflows:ListWorkflows' },
      { name: texts.cases, path: 'cases', icon: IconBriefcase, action: 'cases:ListCases' },
      { name: texts.playbooks, path: 'playbooks', icon: IconListCheck, action: 'playbooks:ListPlaybooks' },
      { name: texts.triggers, path: 'triggers', icon: IconAlarm, action: 'triggers:ListTriggers' },
    ],
  },
  {
    name: texts.groups.operate,
    views: [
      { name: texts.usage, path: 'usage', icon: IconChartBar, action: 'usage:GetAggregate' },
      { name: texts.webhooks, path: 'webhooks', icon: IconWebhook, action: 'webhooks:ListWebhooks' },
      { name: texts.events, path: 'events', icon: IconBolt, action: 'events:ListEvents' },
      { name: texts.formations, path: 'formations', icon: IconPackages, action: 'formations:ListFormations' },
      { name: texts.queue, path: 'queue', icon: IconStack2, action: 'orchestrations:GetQueueStats' },
      { name: texts.audit, path: 'audit', icon: IconHistory, action: 'audit:ListAuditEntries' },
      { name: texts.settings, path: 'settings', icon: IconSettings, action: 'projects:GetProject' },
    ],
  },
  {
    name: texts.groups.access,
    views: [
      { name: texts.keys, path: 'keys', icon: IconKey, action: 'project-keys:ListProjectKeys' },
      { name: texts.secrets, path: 'secrets', icon: IconLock, action: 'secrets:ListSecrets' },
      { name: texts.policies, path: 'policies', icon: IconShieldCheck, action: 'policies:ListPolicies' },
      { name: texts.users, path: 'users', icon: IconUsers, action: 'users:ListUsers' },
      { name: texts.apps, path: 'apps', icon: IconPlugConnected, action: 'oauth:ListGrants' },
    ],
  },
]

/** All views of a project. */
export const NAVIGATION: NavigationEntry[] = GROUPS.flatMap(({ views }) => views)
