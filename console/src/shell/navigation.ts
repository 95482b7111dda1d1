import {
  IconAlarm,
  IconBolt,
  IconInbox,
  IconLayoutDashboard,
  IconMessages,
  IconPlayerPlay,
  IconRobot,
  IconRocket,
  IconStack2,
  IconWebhook,
  type TablerIcon,
} from '@tabler/icons-react'
import { strings } from '../strings.ts'

export type NavigationEntry = {
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

const { nav } = strings

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
    ],
  },
  { name: nav.groups.knowledge, views: [] },
  {
    name: nav.groups.conversations,
    views: [{ name: nav.sessions, path: 'sessions', icon: IconMessages, action: 'sessions:ListSessions' }],
  },
  {
    name: nav.groups.automate,
    views: [
      { name: nav.triggers, path: 'triggers', icon: IconAlarm, action: 'triggers:ListTriggers' },
      { name: nav.webhooks, path: 'webhooks', icon: IconWebhook, action: 'webhooks:ListWebhooks' },
      { name: nav.events, path: 'events', icon: IconBolt, action: 'events:ListEvents' },
      { name: nav.formations, path: 'formations', icon: IconStack2, action: 'formations:ListFormations' },
    ],
  },
  { name: nav.groups.operate, views: [] },
]

/** All views of a project. */
export const NAVIGATION: NavigationEntry[] = GROUPS.flatMap(({ views }) => views)
