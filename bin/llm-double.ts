#!/usr/bin/env node
import { doubleCommand } from '../src/double/command.ts'

await doubleCommand().parseAsync()
