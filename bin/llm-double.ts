#!/usr/bin/env node
import { doubleCommand } from '../src/local/double/command.ts'

await doubleCommand().parseAsync()
