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
import * as strings from '../strings.ts'

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

const nav = strings.nav

/** Views of a project, by what they are for. */
export const GROUPS: { name: string; views: NavigationEntry[] }[] = [
  {
    name: nav.groups.project,
    views: [
      { name: nav.start, path: 'start', icon: IconRocket, action: 'projects:GetProject' },
      { name: nav.overview, path: 'overview', icon: IconLayoutDashboard, action: 'generations:ListGenerations' },
      {
        name: nav.inbox,
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
    name: nav.groups.build,
    views: [
      { name: nav.agents, path: 'agents', icon: IconRobot, action: 'agents:ListAgents' },
      { name: nav.playground, path: 'playground', icon: IconPlayerPlay, action: 'agents:CreateAgentGeneration' },
      { name: nav.tools, path: 'tools', icon: IconTool, action: 'tools:ListTools' },
      { name: nav.guardrails, path: 'guardrails', icon: IconShieldCheck, action: 'guardrails:ListGuardrails' },
      { name: nav.datasets, path: 'datasets', icon: IconDatabase, action: 'evaluations:ListDatasets' },
      { name: nav.evals, path: 'evals', icon: IconTestPipe, action: 'evaluations:ListEvals' },
    ],
  },
  {
    name: nav.groups.knowledge,
    views: [
      { name: nav.files, path: 'files', icon: IconFolder, action: 'files:GetFile' },
      { name: nav.documents, path: 'documents', icon: IconFileText, action: 'documents:ListDocuments' },
      { name: nav.search, path: 'search', icon: IconZoomQuestion, action: 'knowledge:SearchKnowledge' },
      { name: nav.memory, path: 'memory', icon: IconBrain, action: 'memories:ListMemoryStores' },
    ],
  },
  {
    name: nav.groups.conversations,
    views: [
      { name: nav.sessions, path: 'sessions', icon: IconMessages, action: 'sessions:ListSessions' },
      { name: nav.conversations, path: 'conversations', icon: IconMessage2, action: 'conversations:ListConversations' },
      { name: nav.traces, path: 'traces', icon: IconTimeline, action: 'generations:ListGenerations' },
    ],
  },
  {
    name: nav.groups.automate,
    views: [
      {
        name: nav.orchestrations,
        path: 'orchestrations',
        icon: IconHierarchy2,
        action: 'orchestrations:ListOrchestrations',
      },
      { name: nav.runs, path: 'runs', icon: IconPlayerTrackNext, action: 'orchestrations:ListRuns' },
      { name: nav.workflows, path: 'workflows', icon: IconLayoutKanban, action: 'workflows:ListWorkflows' },
      { name: nav.cases, path: 'cases', icon: IconBriefcase, action: 'cases:ListCases' },
      { name: nav.playbooks, path: 'playbooks', icon: IconListCheck, action: 'playbooks:ListPlaybooks' },
      { name: nav.triggers, path: 'triggers', icon: IconAlarm, action: 'triggers:ListTriggers' },
    ],
  },
  {
    name: nav.groups.operate,
    views: [
      { name: nav.usage, path: 'usage', icon: IconChartBar, action: 'usage:GetAggregate' },
      { name: nav.webhooks, path: 'webhooks', icon: IconWebhook, action: 'webhooks:ListWebhooks' },
      { name: nav.events, path: 'events', icon: IconBolt, action: 'events:ListEvents' },
      { name: nav.formations, path: 'formations', icon: IconPackages, action: 'formations:ListFormations' },
      { name: nav.queue, path: 'queue', icon: IconStack2, action: 'orchestrations:GetQueueStats' },
      { name: nav.audit, path: 'audit', icon: IconHistory, action: 'audit:ListAuditEntries' },
      { name: nav.settings, path: 'settings', icon: IconSettings, action: 'projects:GetProject' },
    ],
  },
  {
    name: nav.groups.access,
    views: [
      { name: nav.keys, path: 'keys', icon: IconKey, action: 'project-keys:ListProjectKeys' },
      { name: nav.secrets, path: 'secrets', icon: IconLock, action: 'secrets:ListSecrets' },
      { name: nav.policies, path: 'policies', icon: IconShieldCheck, action: 'policies:ListPolicies' },
      { name: nav.users, path: 'users', icon: IconUsers, action: 'users:ListUsers' },
      { name: nav.apps, path: 'apps', icon: IconPlugConnected, action: 'oauth:ListGrants' },
    ],
  },
]

/** All views of a project. */
export const NAVIGATION: NavigationEntry[] = GROUPS.flatMap(({ views }) => views)
