import {
  IconHierarchy,
  IconInbox,
  IconLayoutDashboard,
  IconMessages,
  IconPlayerPlay,
  IconPlayerTrackNext,
  IconRobot,
  IconRocket,
  IconTimeline,
  type TablerIcon,
} from '@tabler/icons-react'
import { strings } from '../strings.ts'

export type NavigationEntry = {
  name: string
  path: string
  icon: TablerIcon
  /** Permission without which the view is not offered. */
  action: string
}

const { nav } = strings

/** Views of a project, by what they are for. */
export const GROUPS: { name: string; views: NavigationEntry[] }[] = [
  {
    name: nav.groups.project,
    views: [
      { name: nav.start, path: 'start', icon: IconRocket, action: 'projects:GetProject' },
      { name: nav.overview, path: 'overview', icon: IconLayoutDashboard, action: 'generations:ListGenerations' },
      { name: nav.inbox, path: 'inbox', icon: IconInbox, action: 'approvals:ListApprovals' },
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
    views: [
      { name: nav.sessions, path: 'sessions', icon: IconMessages, action: 'sessions:ListSessions' },
      { name: nav.traces, path: 'traces', icon: IconTimeline, action: 'generations:ListGenerations' },
    ],
  },
  {
    name: nav.groups.automate,
    views: [
      {
        name: nav.orchestrations,
        path: 'orchestrations',
        icon: IconHierarchy,
        action: 'orchestrations:ListOrchestrations',
      },
      { name: nav.runs, path: 'runs', icon: IconPlayerTrackNext, action: 'orchestrations:ListRuns' },
    ],
  },
  { name: nav.groups.operate, views: [] },
]

/** All views of a project. */
export const NAVIGATION: NavigationEntry[] = GROUPS.flatMap(({ views }) => views)
