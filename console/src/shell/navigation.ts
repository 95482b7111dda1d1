import {
  IconInbox,
  IconLayoutDashboard,
  IconMessages,
  IconPlayerPlay,
  IconRobot,
  IconRocket,
  type TablerIcon,
} from '@tabler/icons-react'
import { strings } from '../strings.ts'

export type NavigationEntry = { name: string; path: string; icon: TablerIcon; action: string }

/** Views of a project, each with the permission without which it is not offered. */
export const NAVIGATION: NavigationEntry[] = [
  { name: strings.nav.start, path: 'start', icon: IconRocket, action: 'projects:GetProject' },
  { name: strings.nav.overview, path: 'overview', icon: IconLayoutDashboard, action: 'generations:ListGenerations' },
  { name: strings.nav.agents, path: 'agents', icon: IconRobot, action: 'agents:ListAgents' },
  { name: strings.nav.playground, path: 'playground', icon: IconPlayerPlay, action: 'agents:CreateAgentGeneration' },
  { name: strings.nav.sessions, path: 'sessions', icon: IconMessages, action: 'sessions:ListSessions' },
  { name: strings.nav.inbox, path: 'inbox', icon: IconInbox, action: 'approvals:ListApprovals' },
]
